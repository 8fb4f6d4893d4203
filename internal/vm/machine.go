// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Accelerations of guests.
const (
	KVM = "kvm" // the processor's virtualization
	TCG = "tcg" // emulation by QEMU ("tiny code generator")
)

// bootTimeout is the default of Options.BootTimeout. A boot takes about 3 s on an idle machine.
const bootTimeout = 5 * time.Minute

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
	// Modules are kernel modules to load first. The kernel loads most on demand, but not some such as br_netfilter.
	Modules []string
	// Share is a directory that the guest writes to; empty means none. All other writes of the guest are lost.
	Share string
	// MemoryMB is the guest's memory in MiB; 0 means 2048. Files that it writes outside of Share use up to half of it.
	MemoryMB    int
	BootTimeout time.Duration // limits the time until the command runs; 0 means five minutes
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

func pass(p *exec.Cmd, file *os.File) string {
	p.ExtraFiles = append(p.ExtraFiles, file)
	return strconv.Itoa(2 + len(p.ExtraFiles))
}

func closeFiles(p *exec.Cmd) {
	for _, file := range p.ExtraFiles {
		_ = file.Close()
	}
}

func (m *machine) connect(p *exec.Cmd, name string) (theirs string, ours *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return "", nil, fmt.Errorf("create a socket pair: %w", err)
	}
	ours = os.NewFile(uintptr(fds[0]), name)
	m.files = append(m.files, ours)
	return pass(p, os.NewFile(uintptr(fds[1]), name)), ours, nil
}

// run starts a process of the machine. It is killed when the thread that starts it ends, so that thread has to stay
// (runtime.LockOSThread). It gets no signals from the terminal.
func (m *machine) run(p *exec.Cmd) error {
	p.Stdout, p.Stderr = m.stderr, m.stderr
	p.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL, Setpgid: true}
	if err := p.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.Path, err)
	}
	m.processes.Go(func() {
		_ = p.Wait() // its output shows how it ended
		m.kill()
	})
	return nil
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

// Host and guest exchange frames over one virtio port, so that the output of a command arrives before its exit code. A
// frame is a byte with its kind, the length of the data as 4 bytes in network byte order, and the data.

type kind byte

// Frames from the guest.
const (
	frameStarted kind = 'S' // the command runs
	frameStdout  kind = '1' // output of the command
	frameStderr  kind = '2'
	frameExited  kind = 'X' // the command's exit code, 1 byte; the last frame
	frameFailed  kind = 'F' // error text of a command that did not start; the last frame
)

// Frames from the host.
const (
	frameSignal kind = 'K' // signal for the command, 1 byte
	frameStdin  kind = '0' // input of the command; without data it is the end of the input
)

const (
	frameHeader = 5
	maxFrame    = 32<<10 - frameHeader // the maximum size of the data. A virtio port takes 32 KiB at a time.
	portName    = "mustang"            // the name of the virtio port
)

type frameWriter struct {
	mu  sync.Mutex
	w   io.Writer
	buf []byte
}

func (f *frameWriter) write(what kind, data []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.buf = append(f.buf[:0], byte(what))
	f.buf = binary.BigEndian.AppendUint32(f.buf, uint32(len(data)))
	f.buf = append(f.buf, data...)
	_, err := f.w.Write(f.buf)
	return err
}

// stream is a writer that sends its input in frames.
type stream struct {
	frames *frameWriter
	what   kind
}

func (s stream) Write(data []byte) (n int, err error) {
	for n < len(data) {
		part := data[n:min(len(data), n+maxFrame)]
		if err := s.frames.write(s.what, part); err != nil {
			return n, err
		}
		n += len(part)
	}
	return n, nil
}

type frame struct {
	what kind
	data []byte
}

func readFrame(r io.Reader) (frame, error) {
	var header [frameHeader]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return frame{}, err
	}
	size := binary.BigEndian.Uint32(header[1:])
	if size > maxFrame {
		return frame{}, fmt.Errorf("frame %q of %d bytes: want at most %d", header[0], size, maxFrame)
	}
	f := frame{what: kind(header[0]), data: make([]byte, size)}
	_, err := io.ReadFull(r, f.data)
	return f, err
}
