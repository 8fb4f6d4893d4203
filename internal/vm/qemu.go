// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"

	"golang.org/x/sys/unix"
)

const qemu = "qemu-system-x86_64"

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
