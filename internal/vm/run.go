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
	"time"

	"golang.org/x/sys/unix"
)

// bootTimeout is how long a guest may take until its command runs. It takes
// about 3 s on an idle machine.
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
	return fmt.Sprintf("%s; its console: %q", text, lastWords(e.Console))
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
	if err := CheckTools(); err != nil {
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
	control *os.File
	console *tail
	files   []*os.File    // to be closed
	read    chan struct{} // closed when the console has ended
	wrong   error         // why frames was closed, valid then
}

// start starts all processes of a guest.
func start(o Options) (_ *machine, err error) {
	m := &machine{
		options: o, dead: make(chan string, 8), frames: make(chan frame), console: &tail{also: o.Console}, read: make(chan struct{}),
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
	modules, err := loadModules(o.Kernel.Modules, o.Modules)
	if err != nil {
		return nil, err
	}
	orders := order{Command: o.Command, Dir: o.Dir, Env: o.Env, Modules: o.Kernel.Modules, Mounts: h.mounts}
	if h.initramfs, err = buildInitramfs(orders, o.Init, modules); err != nil {
		return nil, err
	}
	defer h.initramfs.Close()
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

// attend passes on what the command writes until it has ended, or must.
func (m *machine) attend(ctx context.Context) (int, error) {
	boot := time.NewTimer(bootTimeout)
	defer boot.Stop()
	var deadline, grace <-chan time.Time
	started := false
	cancelled := ctx.Done()
	for {
		select {
		case f, ok := <-m.frames:
			if !ok {
				return 0, m.gone(started)
			}
			switch f.what {
			case frameStarted:
				started = true
				boot.Stop()
				if m.options.Timeout > 0 {
					timer := time.NewTimer(m.options.Timeout)
					defer timer.Stop()
					deadline = timer.C
				}
			case frameExited:
				if err := ctx.Err(); err != nil {
					return int(f.data[0]), context.Cause(ctx)
				}
				return int(f.data[0]), nil
			default:
				if err := m.take(f); err != nil {
					return 0, err
				}
			}
		case name := <-m.dead:
			return 0, fmt.Errorf("%s ended", name)
		case <-boot.C:
			return 0, fmt.Errorf("not booted after %v", bootTimeout)
		case <-deadline:
			return 0, fmt.Errorf("%w after %v", ErrTimeout, m.options.Timeout)
		case <-cancelled:
			if m.options.Grace == 0 || !started {
				return 0, context.Cause(ctx)
			}
			cancelled = nil
			if _, err := m.control.Write([]byte{byte(unix.SIGINT)}); err != nil {
				return 0, context.Cause(ctx)
			}
			timer := time.NewTimer(m.options.Grace)
			defer timer.Stop()
			grace = timer.C
		case <-grace:
			return 0, context.Cause(ctx)
		}
	}
}

// take passes on a frame of output.
func (m *machine) take(f frame) error {
	var err error
	switch f.what {
	case frameStdout:
		_, err = m.options.Stdout.Write(f.data)
	case frameStderr:
		_, err = m.options.Stderr.Write(f.data)
	case frameFailed:
		return errors.New(string(f.data))
	default:
		return fmt.Errorf("unknown frame %q from the guest", f.what)
	}
	if err != nil {
		return fmt.Errorf("pass on the output: %w", err)
	}
	return nil
}

// gone says why the guest went away.
func (m *machine) gone(started bool) error {
	switch {
	case !errors.Is(m.wrong, io.EOF) && !errors.Is(m.wrong, unix.ECONNRESET):
		return m.wrong
	case started:
		return errors.New("the guest ended before its command")
	}
	return errNotBooted
}
