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
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

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

// No boot messages and tests of ciphers, which take a second; a panic ends the machine.
const kernelArguments = "console=ttyS0 quiet panic=-1 cryptomgr.notests"

// startQEMU also starts a daemon for each directory. It returns our ends of the serial line and the virtio port.
func (m *machine) startQEMU() (console, control *os.File, err error) {
	path, err := findTool(qemu)
	if err != nil {
		return nil, nil, err
	}
	mounts, err := m.mounts()
	if err != nil {
		return nil, nil, err
	}
	p := exec.CommandContext(m.alive, path)
	defer closeFiles(p)
	consoleFD, console, err := m.connect(p, "console")
	if err != nil {
		return nil, nil, err
	}
	controlFD, control, err := m.connect(p, "control")
	if err != nil {
		return nil, nil, err
	}
	initramfs, err := m.buildInitramfs(mounts)
	if err != nil {
		return nil, nil, err
	}
	initrd := pass(p, initramfs)
	accelerator, arguments := m.processor()
	// With more processors, emulation fails when the kernel patches its own code.
	p.Args = append(append(p.Args, accelerator...), "-smp", "1", "-m", fmt.Sprintf("%dM", m.MemoryMB),
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-kernel", m.Kernel.Image, "-append", arguments, "-initrd", "/proc/self/fd/"+initrd,
		"-chardev", "socket,id=console,fd="+consoleFD, "-serial", "chardev:console",
		"-device", "virtio-serial-pci", "-chardev", "socket,id=control,fd="+controlFD,
		"-device", "virtserialport,chardev=control,name="+portName)
	if len(mounts) == 0 {
		p.Args = append(p.Args, "-machine", "q35")
	} else { // the daemons access the guest's memory
		p.Args = append(p.Args, "-machine", "q35,memory-backend=memory",
			"-object", fmt.Sprintf("memory-backend-memfd,id=memory,size=%dM,share=on", m.MemoryMB))
	}
	for _, mount := range mounts {
		client, err := m.serve(mount)
		if err != nil {
			return nil, nil, err
		}
		p.Args = append(p.Args,
			"-chardev", "socket,id="+mount.Tag+",fd="+pass(p, client),
			"-device", "vhost-user-fs-pci,chardev="+mount.Tag+",tag="+mount.Tag)
	}
	if m.Network != nil {
		p.Args = append(p.Args, m.networkDevice(p)...)
	}
	return console, control, m.run(p)
}

func (m *machine) processor() (accelerator []string, kernel string) {
	if m.Acceleration == KVM {
		return []string{"-accel", "kvm", "-cpu", "host"}, kernelArguments
	}
	kernel = kernelArguments + " no_timer_check tsc=reliable mitigations=off"
	// With erms and fsrm the kernel copies with single instructions, which QEMU emulates
	// byte by byte: all paths would take the same time. After cmpxchg16b, which the kernel's allocator uses where
	// there is cx16, QEMU 7.2 leaves random EFLAGS: an interrupt at that instruction is a kernel panic.
	accelerator = []string{"-cpu", "max,-erms,-fsrm,-cx16", "-accel"}
	if m.CountInstructions {
		// One tick per instruction, one instruction per nanosecond. An idle guest waits in real time: if its clock jumped
		// to the next timer, waiting for the host (reading a file) would time out.
		return append(accelerator, "tcg,thread=single", "-icount", "shift=0,sleep=on", "-rtc", "clock=vm"),
			kernel + " nokaslr tsc_early_khz=1000000"
	}
	if rate := tickRate(); rate > 0 {
		// On a busy machine the kernel measures a wrong rate, by up to a factor of 10. The cause is preemption between
		// setting a timer and reading the counter.
		kernel += fmt.Sprintf(" tsc_early_khz=%d", rate)
	}
	return append(accelerator, "tcg,thread=multi"), kernel
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

const kvmTimeout = 10 * time.Second

// accelerations caches the results of [Acceleration] by the kernel's image.
var (
	accelerations      = map[string]string{}
	accelerationsMutex sync.Mutex
)

// Acceleration returns [KVM] if a bare guest of the running program boots with it on this machine, else [TCG]. KVM
// inside of a virtual machine can lack features that a kernel needs. The first call takes as long as a boot.
func Acceleration(ctx context.Context, kernel Kernel) (string, error) {
	if err := CheckTools(true); err != nil {
		return "", err
	}
	accelerationsMutex.Lock()
	defer accelerationsMutex.Unlock()
	if known, ok := accelerations[kernel.Image]; ok {
		return known, nil
	}
	found := TCG
	if _, err := os.Stat("/dev/kvm"); err == nil {
		_, err := Run(ctx, Options{
			Kernel: kernel, Bare: true, Acceleration: KVM, MemoryMB: 384, BootTimeout: kvmTimeout, Command: []string{"/none"},
		})
		if ctx.Err() != nil {
			return "", err
		}
		if err == nil { // with an exit code: the command does not exist
			found = KVM
		}
	}
	accelerations[kernel.Image] = found
	return found, nil
}
