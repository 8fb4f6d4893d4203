// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// qemu is the system emulator.
const qemu = "qemu-system-x86_64"

// hardware is the configuration of a virtual machine.
type hardware struct {
	options   Options
	initramfs *os.File // or nil
	control   *os.File // peer of the host's end of the virtio port; or nil
	console   *os.File // the same for the serial line
	vhost     *os.File // or nil
	mounts    []mount
	shares    []share // one for each mount
}

// kernelArguments disable boot messages and tests of ciphers, which would take another
// second, and end the machine on a panic.
const kernelArguments = "console=ttyS0 quiet panic=-1 cryptomgr.notests"

// emulationArguments are for emulated machines too: no mitigations.
const emulationArguments = " no_timer_check tsc=reliable mitigations=off"

// start starts QEMU.
func (h hardware) start() (*process, error) {
	path, err := findTool(qemu)
	if err != nil {
		return nil, err
	}
	p := &program{path: path}
	arguments := h.processor(p)
	p.args = append(p.args,
		"-m", fmt.Sprintf("%dM", h.options.MemoryMB), "-smp", fmt.Sprint(h.options.CPUs),
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-kernel", h.options.Kernel.Image, "-append", arguments,
		"-chardev", "socket,id=console,fd="+p.pass(h.console), "-serial", "chardev:console",
	)
	if h.initramfs != nil {
		p.args = append(p.args, "-initrd", "/proc/self/fd/"+p.pass(h.initramfs))
	}
	if h.control != nil {
		p.args = append(p.args,
			"-device", "virtio-serial-pci", "-chardev", "socket,id=control,fd="+p.pass(h.control),
			"-device", "virtserialport,chardev=control,name="+portName)
	}
	if h.options.Network != nil {
		p.args = append(p.args, h.options.Network.arguments(p, h.vhost)...)
	}
	h.share(p)
	return p.start()
}

// processor adds the arguments of the processor, and returns the kernel's arguments.
func (h hardware) processor(p *program) string {
	if h.options.Acceleration == KVM {
		p.args = []string{"-accel", "kvm", "-cpu", "host"}
		return kernelArguments
	}
	accelerator, arguments, rate := "tcg,thread=multi", kernelArguments+emulationArguments, tickRate()
	if h.options.CountInstructions {
		// one tick per instruction, one instruction per nanosecond
		accelerator, arguments, rate = "tcg,thread=single", arguments+" nokaslr", 1e6
	}
	if rate > 0 {
		// On a busy machine the kernel measures a wrong rate, by up to a factor of 10,
		// when its thread is preempted between setting a timer and reading the counter.
		arguments += fmt.Sprintf(" tsc_early_khz=%d", rate)
	}
	// With erms and fsrm the kernel copies with single instructions, which QEMU emulates
	// byte by byte: all paths would take the same time. After cmpxchg16b, which the kernel's allocator uses where
	// there is cx16, QEMU 7.2 leaves random EFLAGS: an interrupt at that instruction is a kernel panic.
	p.args = []string{"-accel", accelerator, "-cpu", "max,-erms,-fsrm,-cx16"}
	if h.options.CountInstructions {
		// An idle guest waits in real time: if its clock jumped to the next timer, waiting
		// for the host (reading a file) would time out.
		p.args = append(p.args, "-icount", "shift=0,sleep=on", "-rtc", "clock=vm")
	}
	return arguments
}

// share adds the host's directories. Their daemons access the guest's memory.
func (h hardware) share(p *program) {
	if len(h.mounts) == 0 {
		p.args = append(p.args, "-machine", "q35")
		return
	}
	p.args = append(p.args, "-machine", "q35,memory-backend=memory",
		"-object", fmt.Sprintf("memory-backend-memfd,id=memory,size=%dM,share=on", h.options.MemoryMB))
	for i, m := range h.mounts {
		p.args = append(p.args,
			"-chardev", "socket,id="+m.Tag+",fd="+p.pass(h.shares[i].client),
			"-device", "vhost-user-fs-pci,chardev="+m.Tag+",tag="+m.Tag)
	}
}

// process is QEMU or one of its daemons. It is killed when the thread that started it ends, so that thread has to stay
// (runtime.LockOSThread). It gets no signals from the terminal.
type process struct {
	name   string
	cmd    *exec.Cmd
	stderr *tail
	done   chan struct{} // closed when the process has ended
}

// program is a program to start.
type program struct {
	path  string
	args  []string
	files []*os.File
}

// pass adds a file for the program to inherit and returns its descriptor there.
func (p *program) pass(file *os.File) string {
	p.files = append(p.files, file)
	return strconv.Itoa(2 + len(p.files))
}

func (p *program) start() (*process, error) {
	child := &process{stderr: &tail{}, done: make(chan struct{})}
	child.cmd = exec.Command(p.path, p.args...)
	child.name = child.cmd.Path
	child.cmd.ExtraFiles = p.files
	child.cmd.Stdout, child.cmd.Stderr = child.stderr, child.stderr
	child.cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL, Setpgid: true}
	if err := child.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", p.path, err)
	}
	go func() {
		defer close(child.done)
		_ = child.cmd.Wait() // its output tells how it ended
	}()
	return child, nil
}

// kill kills the process and waits for its end.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // an error means that it has ended
	<-p.done
}

// tail keeps the end of its input.
type tail struct {
	mu   sync.Mutex
	data []byte
	also io.Writer // receives all input; or nil
}

// tailSize is the minimum number of bytes that a tail keeps.
const tailSize = 16 << 10

// Write implements io.Writer.
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

// socketPair returns two connected stream sockets.
func socketPair(name string) (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("create a socket pair: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), name), os.NewFile(uintptr(fds[1]), name), nil
}
