// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"fmt"
	"os"
)

// qemu is the program that is the virtual machine.
const qemu = "qemu-system-x86_64"

// hardware is what a virtual machine is made of.
type hardware struct {
	options   Options
	initramfs *os.File // or nil
	control   *os.File // our end of the virtio port is its peer; or nil
	console   *os.File // likewise, of the serial line
	vhost     *os.File // the network device's helper; or nil
	mounts    []mount
	shares    []share // one for each mount
}

// kernelArguments are for a machine that lives for minutes: no boot messages, and
// no tests of ciphers, which would go on for a second after the command's start. A
// panic ends it.
const kernelArguments = "console=ttyS0 quiet panic=-1 cryptomgr.notests"

// emulationArguments are for a machine that is emulated besides: no mitigations.
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

// processor adds what makes the guest run, and returns the kernel's arguments.
func (h hardware) processor(p *program) string {
	if h.options.Acceleration == KVM {
		p.args = []string{"-accel", "kvm", "-cpu", "host"}
		return kernelArguments
	}
	accelerator, arguments, rate := "tcg,thread=multi", kernelArguments+emulationArguments, tickRate()
	if h.options.CountInstructions {
		// one tick per instruction, which takes a nanosecond
		accelerator, arguments, rate = "tcg,thread=single", arguments+" nokaslr", 1e6
	}
	if rate > 0 {
		// On a busy machine the kernel measures the rate wrongly, by a factor of 10 at
		// times: its thread stands still between setting a timer and reading the counter.
		arguments += fmt.Sprintf(" tsc_early_khz=%d", rate)
	}
	// With erms and fsrm the kernel copies by single instructions, each emulated
	// byte by byte: every path would take the same.
	p.args = []string{"-accel", accelerator, "-cpu", "max,-erms,-fsrm"}
	if h.options.CountInstructions {
		// An idle guest waits in real time: if its clock jumped to the next timer, then
		// whatever it waits for from outside (a file to be read) would time out.
		p.args = append(p.args, "-icount", "shift=0,sleep=on", "-rtc", "clock=vm")
	}
	return arguments
}

// share adds the host's directories. Their daemons work in the guest's memory.
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
