// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bufio"
	"cmp"
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

// bootTimeout is the default of Options.BootTimeout. A boot takes about 3 s on an idle machine.
const bootTimeout = 2 * time.Minute

// bootAttempts is the number of boots of a guest whose kernel panics before the command runs. Emulation of several
// processors has faults: on a busy machine a boot fails now and then.
const bootAttempts = 3

// panicMessage is in the first line of a kernel panic.
const panicMessage = "Kernel panic"

var errNotBooted = errors.New("the guest ended before it had booted")

// ErrTimeout reports that Options.Timeout has expired.
var ErrTimeout = errors.New("timeout")

// GuestError reports that a guest ended before its command, or failed to boot.
type GuestError struct {
	Err     error  // the reason
	Console string // the last lines of the guest's kernel
	Stderr  string // the last lines of QEMU and its daemons
}

func (e *GuestError) Error() string {
	text := fmt.Sprintf("run in a guest: %v", e.Err)
	if e.Stderr != "" {
		text += fmt.Sprintf("; qemu: %s", lastLines(e.Stderr, 2))
	}
	if message := lastMessage(e.Console); message != "" {
		return fmt.Sprintf("%s; its console: %q", text, message)
	}
	return text + "; its console is empty"
}

// lastMessage returns the last output of a kernel on one line; after a panic, the panic and the line before it.
func lastMessage(console string) string {
	if before, after, panicked := strings.Cut(console, panicMessage); panicked {
		after, _, _ = strings.Cut(after, "\n")
		return lastLines(before+panicMessage+after, 2)
	}
	return lastLines(console, 3)
}

func (e *GuestError) Unwrap() error { return e.Err }

// panickedAtBoot reports whether the kernel gave up before the command ran, so that nothing is lost by another try.
func (e *GuestError) panickedAtBoot() bool {
	return errors.Is(e.Err, errNotBooted) && strings.Contains(e.Console, panicMessage)
}

// Run runs a command in a guest, waits for its end and returns its exit code as a shell would give it: 128 and the
// signal's number if a signal ended it, 126 or 127 if it could not be started. If the guest fails, or ctx or the time
// ends before, the error is a *GuestError. When Run returns, no process and no file of the guest is left, and likewise
// soon after this process was killed.
//
// If ctx ends and there is a grace, and the command ends in it, Run returns its exit code together with ctx's error.
func Run(ctx context.Context, o Options) (exitCode int, err error) {
	if err := checkTools(o.Bare); err != nil {
		return 0, err
	}
	if o, err = o.withDefaults(); err != nil {
		return 0, fmt.Errorf("run in a guest: %w", err)
	}
	// QEMU dies with the thread that starts it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for boot := 1; ; boot++ {
		exitCode, err = runOnce(ctx, o)
		var guest *GuestError
		if boot == bootAttempts || !errors.As(err, &guest) || !guest.panickedAtBoot() {
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
	code, err := m.waitCommand(ctx)
	if err == nil {
		return code, nil
	}
	m.close() // completes the console output
	stderr := m.qemu.stderr.String()
	for _, s := range m.shares {
		stderr += s.daemon.stderr.String()
	}
	return code, &GuestError{Err: err, Console: m.console.String(), Stderr: stderr}
}

// machine is a running guest.
type machine struct {
	options     Options
	qemu        *process
	shares      []share
	daemonExits chan string // names of daemons that have ended
	frames      chan frame  // from the guest; closed when the guest has ended
	inputDone   chan bool   // one element per input frame that the command has received
	control     *os.File
	send        *frameWriter // to the guest
	console     *tail
	files       []*os.File    // to close with the machine
	consoleDone chan struct{} // closed when the console has ended
	readErr     error         // the reason why frames was closed
}

// start starts all processes of a guest.
func start(o Options) (_ *machine, err error) {
	m := &machine{
		options: o, console: &tail{also: o.Console}, consoleDone: make(chan struct{}),
		daemonExits: make(chan string, 8), frames: make(chan frame), inputDone: make(chan bool, 1),
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
			m.daemonExits <- s.daemon.name
		}()
	}
	return m, nil
}

func (m *machine) readConsole(console io.Reader) {
	defer close(m.consoleDone)
	_, _ = io.Copy(m.console, console) // ends with QEMU
}

func (m *machine) readFrames() {
	defer close(m.frames)
	r := bufio.NewReaderSize(m.control, 64<<10)
	for {
		f, err := readFrame(r)
		if err != nil {
			m.readErr = err
			return
		}
		m.frames <- f
	}
}

// close ends all processes. Further calls do nothing.
func (m *machine) close() {
	if m.qemu != nil {
		m.qemu.kill()
		<-m.consoleDone
		for range m.frames { // the reader ends with QEMU
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

// waitCommand forwards input and output of the command until it ends, or until ctx ends
// or a timeout expires. It returns the exit code.
func (m *machine) waitCommand(ctx context.Context) (int, error) {
	running, stop := context.WithCancel(context.Background())
	defer stop()
	limit, late := cmp.Or(m.options.bootTimer, time.NewTimer(m.options.BootTimeout)), fmt.Errorf("not booted after %v", m.options.BootTimeout)
	defer func() { limit.Stop() }()
	started := false
	cancelled := ctx.Done()
	for {
		select {
		case f, ok := <-m.frames:
			if !ok {
				return 0, m.exitError(started)
			}
			switch f.what {
			case frameStarted:
				started = true
				limit.Stop()
				if m.options.Stdin != nil {
					go m.forwardInput(running)
				}
				if m.options.Timeout > 0 {
					limit, late = time.NewTimer(m.options.Timeout), fmt.Errorf("%w after %v", ErrTimeout, m.options.Timeout)
				}
			case frameExited:
				if len(f.data) != 1 {
					return 0, fmt.Errorf("frame with %d bytes of exit code from the guest, want 1", len(f.data))
				}
				if err := ctx.Err(); err != nil {
					return int(f.data[0]), context.Cause(ctx)
				}
				return int(f.data[0]), nil
			default:
				if err := m.handleOutput(f); err != nil {
					return 0, err
				}
			}
		case name := <-m.daemonExits:
			return 0, fmt.Errorf("%s ended", name)
		case <-limit.C:
			return 0, late
		case <-cancelled:
			if m.options.Grace == 0 || !started {
				return 0, context.Cause(ctx)
			}
			cancelled = nil
			if err := m.send.write(frameSignal, []byte{byte(unix.SIGINT)}); err != nil {
				return 0, context.Cause(ctx)
			}
			limit.Stop()
			limit, late = time.NewTimer(m.options.Grace), context.Cause(ctx)
		}
	}
}

// forwardInput sends the command its input, until the input or the guest ends.
func (m *machine) forwardInput(ctx context.Context) {
	data := make([]byte, maxFrame)
	for {
		n, err := m.options.Stdin.Read(data)
		if n > 0 && !m.sendInput(ctx, data[:n]) {
			return
		}
		if err != nil { // the command sees the end of its input after any error
			m.sendInput(ctx, nil)
			return
		}
	}
}

// sendInput sends one frame of input and waits until the command has received it. It
// returns false if the guest has ended.
func (m *machine) sendInput(ctx context.Context, data []byte) bool {
	if err := m.send.write(frameStdin, data); err != nil {
		return false
	}
	select {
	case <-m.inputDone:
		return true
	case <-ctx.Done():
		return false
	}
}

// handleOutput handles a frame with output of the command.
func (m *machine) handleOutput(f frame) error {
	var err error
	switch f.what {
	case frameStdout:
		_, err = m.options.Stdout.Write(f.data)
	case frameStderr:
		_, err = m.options.Stderr.Write(f.data)
	case frameInputDone:
		m.inputDone <- true // one frame is in flight at a time
	case frameFailed:
		return errors.New(string(f.data))
	default:
		return fmt.Errorf("unknown frame %q from the guest", f.what)
	}
	if err != nil {
		return fmt.Errorf("write the output: %w", err)
	}
	return nil
}

// exitError returns the reason why the guest ended.
func (m *machine) exitError(started bool) error {
	switch {
	case !errors.Is(m.readErr, io.EOF) && !errors.Is(m.readErr, unix.ECONNRESET):
		return m.readErr
	case started:
		return errors.New("the guest ended before its command")
	}
	return errNotBooted
}
