// SPDX-License-Identifier: Apache-2.0

// Package vm runs a command as root in a virtual machine with a stock Debian kernel, independent of the kernel of
// this machine.
//
// The guest is QEMU, with software emulation by default. Its root is this machine's root file system, read-only, below
// an overlay in the guest's memory: the command's writes are lost when it ends. A bare guest has a single program and
// none of these files; it boots faster and needs less memory.
//
// The initramfs contains one static program, process 1 of the guest: the program that calls [Run], or another one. Its
// main function has to call [Init] if [IsInit] returns true, and to ignore its arguments, which come from the kernel.
package vm

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// bootTimeout is the default of Options.BootTimeout. A boot takes about 3 s on an idle machine.
const bootTimeout = 2 * time.Minute

const panicMessage = "Kernel panic"

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
	message := lastLines(e.Console, 3)
	if before, after, panicked := strings.Cut(e.Console, panicMessage); panicked { // and the line before it
		after, _, _ = strings.Cut(after, "\n")
		message = lastLines(before+panicMessage+after, 2)
	}
	return fmt.Sprintf("%s; its console: %q", text, message)
}

func (e *GuestError) Unwrap() error { return e.Err }

// Run runs a command in a guest, waits for its end and returns its exit code as a shell would, 128 plus the signal's
// number, 126 and 127 included. If the guest fails, or ctx or the time ends before, the error is a *GuestError. No
// process and no file of the guest is left, also soon after this process was killed.
//
// If the command ends in the grace after ctx, Run returns its exit code together with ctx's error. A command that
// leaves its input unread may not get the signal.
func Run(ctx context.Context, o Options) (exitCode int, err error) {
	if err := CheckTools(o.Bare); err != nil {
		return 0, err
	}
	if o, err = o.withDefaults(); err != nil {
		return 0, fmt.Errorf("run in a guest: %w", err)
	}
	// QEMU dies with the thread that starts it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	m := &machine{Options: o, console: &tail{also: o.Console}, stderr: &tail{}, frames: make(chan frame)}
	m.alive, m.kill = context.WithCancel(context.Background())
	defer m.close()
	if err := m.start(); err != nil {
		return 0, fmt.Errorf("run in a guest: %w", err)
	}
	if exitCode, err = m.wait(ctx); err == nil || exitCode >= 0 {
		return exitCode, err
	}
	m.close() // completes the console output
	return 0, &GuestError{Err: err, Console: m.console.String(), Stderr: m.stderr.String()}
}

// machine is a running guest. Its processes, QEMU and daemons that QEMU needs, end together.
type machine struct {
	Options
	alive           context.Context
	kill            context.CancelFunc
	processes       sync.WaitGroup
	files           []*os.File // to close with the machine
	frames          chan frame // from the guest; closed when it has ended, with the reason in readErr
	readErr         error
	send            *frameWriter // to the guest
	console, stderr *tail
	readers         sync.WaitGroup
}

func (m *machine) start() error {
	console, control, err := m.startQEMU()
	if err != nil {
		return err
	}
	m.send = &frameWriter{w: control}
	m.readers.Go(func() { _, _ = io.Copy(m.console, console) }) // ends with QEMU
	go func() {
		defer close(m.frames)
		r := bufio.NewReaderSize(control, 64<<10)
		for {
			f, err := readFrame(r)
			if err != nil {
				m.readErr = err
				return
			}
			m.frames <- f
		}
	}()
	return nil
}

func (m *machine) close() {
	m.kill()
	m.processes.Wait()
	if m.send != nil {
		for range m.frames { // the reader ends with QEMU
		}
		m.readers.Wait()
	}
	for _, file := range m.files {
		_ = file.Close()
	}
	m.files = nil
}

// wait forwards output until the command, ctx or a timeout ends. Without an exit code the result is negative.
func (m *machine) wait(ctx context.Context) (int, error) {
	limit, late := time.NewTimer(m.BootTimeout), fmt.Errorf("not booted after %v", m.BootTimeout)
	defer func() { limit.Stop() }()
	started, cancelled := false, ctx.Done()
	for {
		select {
		case f, ok := <-m.frames:
			switch {
			case !ok && !errors.Is(m.readErr, io.EOF) && !errors.Is(m.readErr, unix.ECONNRESET):
				return -1, m.readErr
			case !ok && started:
				return -1, errors.New("the guest ended before its command")
			case !ok:
				return -1, errors.New("the guest ended before it had booted")
			case f.what == frameStarted:
				started = true
				limit.Stop()
				if m.Stdin != nil {
					go func() { // until the input or the guest ends; the command sees its end after any error
						_, _ = io.Copy(stream{m.send, frameStdin}, m.Stdin)
						_ = m.send.write(frameStdin, nil)
					}()
				}
				if m.Timeout > 0 {
					limit, late = time.NewTimer(m.Timeout), fmt.Errorf("%w after %v", ErrTimeout, m.Timeout)
				}
			case f.what == frameExited && len(f.data) == 1:
				return int(f.data[0]), context.Cause(ctx)
			case f.what == frameFailed:
				return -1, errors.New(string(f.data))
			case f.what == frameStdout || f.what == frameStderr:
				out := m.Stdout
				if f.what == frameStderr {
					out = m.Stderr
				}
				if _, err := out.Write(f.data); err != nil {
					return -1, fmt.Errorf("write the output: %w", err)
				}
			default:
				return -1, fmt.Errorf("unknown frame %q of %d bytes from the guest", f.what, len(f.data))
			}
		case <-limit.C:
			return -1, late
		case <-cancelled:
			if m.Grace == 0 || !started || m.send.write(frameSignal, []byte{byte(unix.SIGINT)}) != nil {
				return -1, context.Cause(ctx)
			}
			cancelled = nil
			limit.Stop()
			limit, late = time.NewTimer(m.Grace), context.Cause(ctx)
		}
	}
}

type tail struct {
	mu   sync.Mutex
	data []byte
	also io.Writer // receives all input; or nil
}

const tailSize = 16 << 10 // the least number of bytes that a long text retains

func (t *tail) Write(data []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.also != nil {
		_, _ = t.also.Write(data) // errors do not stop the guest
	}
	t.data = append(t.data, data...)
	if len(t.data) > 2*tailSize {
		t.data = append(t.data[:0], t.data[len(t.data)-tailSize:]...)
	}
	return len(data), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.data)
}

func lastLines(text string, n int) string {
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines[max(0, len(lines)-n):], " | ")
}

// Options describe a command and the guest that runs it.
type Options struct {
	Kernel Kernel // the kernel of the guest, see [FetchKernel]
	Init   string // a static program that calls [Init] when it is process 1; empty means the running program
	// Bare starts the guest without files of this machine but Init, at [Program]. It boots faster and needs less
	// memory. It ignores Dir and Share.
	Bare         bool
	Acceleration string   // [KVM] or [TCG]; empty means TCG
	Network      *Network // gives the guest a network device; nil means none
	Command      []string // run as root, without a shell. A name without a slash is searched on the PATH of Env.
	Dir          string   // the working directory of the command; empty means the current one
	Env          []string // the command's environment; nil means the environment of this process
	// Modules are names of kernel modules to load first. The kernel loads most modules on
	// demand, but not some such as br_netfilter.
	Modules []string
	// Share is a directory that the guest writes to; empty means none. All other writes of the guest are lost.
	Share string
	// MemoryMB is the guest's memory in MiB; 0 means 2048. Files that it writes outside of Share use up to half of it.
	MemoryMB    int
	BootTimeout time.Duration // limits the time until the command runs; 0 means two minutes
	Timeout     time.Duration // limits the run time of the command; 0 means no limit
	// Grace is the time that the command has to end after SIGINT when the context ends. 0 ends the guest at once.
	Grace time.Duration
	// CountInstructions makes the guest's clock count instructions, one per nanosecond. They repeat to about 1 %.
	CountInstructions bool
	// Stdin is the input of the command; nil means none. A Read may still be pending when the command has ended.
	Stdin io.Reader
	// Stdout and Stderr receive the output of the command as it is written; nil discards it.
	Stdout, Stderr io.Writer
	// Console receives the output of the kernel; nil discards it. The error of a failed guest contains its end.
	Console io.Writer
}

func (o Options) withDefaults() (_ Options, err error) {
	if len(o.Command) == 0 || o.Command[0] == "" {
		return o, errors.New("no command")
	}
	o.BootTimeout, o.MemoryMB = cmp.Or(o.BootTimeout, bootTimeout), cmp.Or(o.MemoryMB, 2048)
	if o.Env == nil {
		o.Env = os.Environ()
	}
	for _, w := range []*io.Writer{&o.Stdout, &o.Stderr, &o.Console} {
		if *w == nil {
			*w = io.Discard
		}
	}
	if o.Init == "" {
		if o.Init, err = os.Executable(); err != nil {
			return o, fmt.Errorf("find the running program: %w", err)
		}
	}
	if o.Bare {
		o.Dir, o.Share = "/", ""
	}
	o.Dir = cmp.Or(o.Dir, ".")
	for _, path := range []*string{&o.Dir, &o.Share, &o.Kernel.Image, &o.Kernel.Modules} {
		if *path == "" {
			continue
		}
		if *path, err = filepath.Abs(*path); err != nil {
			return o, err
		}
	}
	for _, dir := range []string{o.Dir, o.Share} {
		info, err := os.Stat(cmp.Or(dir, "/"))
		switch {
		case err != nil:
			return o, err
		case !info.IsDir():
			return o, fmt.Errorf("%s is not a directory", dir)
		}
	}
	return o, o.Kernel.check()
}
