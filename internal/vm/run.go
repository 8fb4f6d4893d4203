// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"
)

// bootTimeout is how long a guest may take until its command runs, unless the
// options say. It takes about 3 s on an idle machine.
const bootTimeout = 2 * time.Minute

// boots is how often a guest is booted whose kernel panics before the command
// runs. Emulated processors that run side by side are not quite right: on a busy
// machine a boot ends in a fault now and then.
const boots = 3

// panicMessage is in the first line that a kernel prints when it panics.
const panicMessage = "Kernel panic"

var errNotBooted = errors.New("the guest ended before it had booted")

// ErrTimeout says that Options.Timeout is over.
var ErrTimeout = errors.New("timeout")

// A GuestError says that a guest ended before its command did, or never got that
// far.
type GuestError struct {
	Err     error  // what happened
	Console string // the end of what the guest's kernel printed, several lines
	Stderr  string // the end of what QEMU and its daemons complained of
}

func (e *GuestError) Error() string {
	text := fmt.Sprintf("run in a guest: %v", e.Err)
	if e.Stderr != "" {
		text += fmt.Sprintf("; qemu: %s", lastLines(e.Stderr, 2))
	}
	if words := lastWords(e.Console); words != "" {
		return fmt.Sprintf("%s; its console: %q", text, words)
	}
	return text + "; its console is empty"
}

// lastWords returns the end of what a kernel printed, as one line; if it
// panicked, that and the line before it.
func lastWords(console string) string {
	if before, after, panicked := strings.Cut(console, panicMessage); panicked {
		after, _, _ = strings.Cut(after, "\n")
		return lastLines(before+panicMessage+after, 2)
	}
	return lastLines(console, 3)
}

func (e *GuestError) Unwrap() error { return e.Err }

// panickedAtBoot reports whether the kernel gave up before the command ran, so
// that nothing is lost by another try.
func (e *GuestError) panickedAtBoot() bool {
	return errors.Is(e.Err, errNotBooted) && strings.Contains(e.Console, panicMessage)
}

// Run runs a command in a guest, waits for its end and returns its exit code as
// a shell would give it: 128 and the signal's number if a signal ended it, 126
// or 127 if it could not be started. If the guest fails, or ctx or the time
// ends before, the error is a *GuestError. When Run returns, no process and no
// file of the guest is left, and likewise soon after this process was killed.
//
// If ctx ends and there is a grace, and the command ends in it, Run returns its
// exit code together with ctx's error.
func Run(ctx context.Context, o Options) (exitCode int, err error) {
	if err := checkTools(o.Bare); err != nil {
		return 0, err
	}
	o, err = o.withDefaults()
	if err != nil {
		return 0, err
	}
	// QEMU dies with the thread that starts it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for boot := 1; ; boot++ {
		exitCode, err = runOnce(ctx, o)
		var guest *GuestError
		if boot == boots || !errors.As(err, &guest) || !guest.panickedAtBoot() {
			return exitCode, err
		}
	}
}

// runOnce boots one guest.
func runOnce(ctx context.Context, o Options) (int, error) {
	m, err := start(o)
	if err != nil {
		return 0, err
	}
	defer m.close()
	code, err := m.attend(ctx)
	if err == nil {
		return code, nil
	}
	m.close() // whatever was printed is there after this
	stderr := m.qemu.stderr.String()
	for _, s := range m.shares {
		stderr += s.daemon.stderr.String()
	}
	return code, &GuestError{Err: err, Console: m.console.String(), Stderr: stderr}
}

// machine is a running guest.
type machine struct {
	options Options
	qemu    *process
	shares  []share
	dead    chan string // names of daemons that have ended
	frames  chan frame  // closed when the guest is gone
	taken   chan bool   // an element for each frame of input that the command has
	ended   chan bool   // closed with the machine
	control *os.File
	send    *frameWriter // to the guest
	console *tail
	files   []*os.File    // to be closed
	read    chan struct{} // closed when the console has ended
	wrong   error         // why frames was closed, valid then
	once    sync.Once     // closes ended
}

// start starts all processes of a guest.
func start(o Options) (_ *machine, err error) {
	m := &machine{
		options: o, dead: make(chan string, 8), frames: make(chan frame), console: &tail{also: o.Console}, read: make(chan struct{}),
		taken: make(chan bool, 1), ended: make(chan bool),
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("run in a guest: %w", err)
			m.close()
		}
	}()
	h := hardware{options: o}
	if h.mounts, err = o.mounts(); err != nil {
		return nil, err
	}
	if h.initramfs, err = o.initramfs(h.mounts); err != nil {
		return nil, err
	}
	defer h.initramfs.Close()
	if h.vhost = o.openVhost(); h.vhost != nil {
		defer h.vhost.Close()
	}
	for _, mount := range h.mounts {
		s, err := serve(mount)
		if err != nil {
			return nil, err
		}
		m.shares = append(m.shares, s)
		m.files = append(m.files, s.client)
	}
	h.shares = m.shares
	var console *os.File
	if console, h.console, err = socketPair("console"); err != nil {
		return nil, err
	}
	m.files = append(m.files, console)
	defer h.console.Close()
	if m.control, h.control, err = socketPair("control"); err != nil {
		return nil, err
	}
	m.files = append(m.files, m.control)
	defer h.control.Close()
	if m.qemu, err = h.start(); err != nil {
		return nil, err
	}
	m.send = &frameWriter{w: m.control}
	go m.readConsole(console)
	go m.readFrames()
	for _, s := range m.shares {
		go func() {
			<-s.daemon.done
			m.dead <- s.daemon.name
		}()
	}
	return m, nil
}

func (m *machine) readConsole(console io.Reader) {
	defer close(m.read)
	_, _ = io.Copy(m.console, console) // ends with QEMU
}

func (m *machine) readFrames() {
	defer close(m.frames)
	r := bufio.NewReaderSize(m.control, 64<<10)
	for {
		f, err := readFrame(r)
		if err != nil {
			m.wrong = err
			return
		}
		m.frames <- f
	}
}

// close ends all processes. It may be called again.
func (m *machine) close() {
	m.once.Do(func() { close(m.ended) })
	if m.qemu != nil {
		m.qemu.kill()
		<-m.read
		for range m.frames { // their reader ends with QEMU
		}
	}
	for _, s := range m.shares {
		s.daemon.kill()
	}
	for _, file := range m.files {
		_ = file.Close()
	}
	m.files = nil
}
