// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"fmt"
	"os"
)

// hardware is what a virtual machine is made of.
type hardware struct {
	options   Options
	initramfs *os.File
	control   *os.File // our end of the virtio port is its peer
	console   *os.File // likewise, of the serial line
	mounts    []mount
	shares    []share // one for each mount
}

// kernelArguments are for a machine that is emulated and lives for minutes: no
// boot messages, no mitigations, and no tests of ciphers, which would go on for a
// second after the command's start. A panic ends it.
const kernelArguments = "console=ttyS0 quiet panic=-1 no_timer_check tsc=reliable mitigations=off cryptomgr.notests"

// start starts QEMU.
func (h hardware) start() (*process, error) {
	path, err := findTool("qemu-system-x86_64")
	if err != nil {
		return nil, err
	}
	p := &program{path: path}
	accelerator, arguments, rate := "tcg,thread=multi", kernelArguments, tickRate()
	if h.options.CountInstructions {
		// one tick per instruction, which takes a nanosecond
		accelerator, arguments, rate = "tcg,thread=single", kernelArguments+" nokaslr", 1e6
	}
	if rate > 0 {
		// On a busy machine the kernel measures the rate wrongly, by a factor of 10 at
		// times: its thread stands still between setting a timer and reading the counter.
		arguments += fmt.Sprintf(" tsc_early_khz=%d", rate)
	}
	// With erms and fsrm the kernel copies by single instructions, each emulated
	// byte by byte: every path would take the same.
	p.args = []string{
		"-accel", accelerator, "-cpu", "max,-erms,-fsrm", "-machine", "q35,memory-backend=memory",
		"-m", fmt.Sprintf("%dM", h.options.MemoryMB), "-smp", fmt.Sprint(h.options.CPUs),
		"-object", fmt.Sprintf("memory-backend-memfd,id=memory,size=%dM,share=on", h.options.MemoryMB),
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-kernel", h.options.Kernel.Image, "-initrd", "/proc/self/fd/" + p.pass(h.initramfs), "-append", arguments,
		"-chardev", "socket,id=console,fd=" + p.pass(h.console), "-serial", "chardev:console",
		"-device", "virtio-serial-pci", "-chardev", "socket,id=control,fd=" + p.pass(h.control),
		"-device", "virtserialport,chardev=control,name=" + portName,
	}
	if h.options.CountInstructions {
		// An idle guest waits in real time: if its clock jumped to the next timer, then
		// whatever it waits for from outside (a file to be read) would time out.
		p.args = append(p.args, "-icount", "shift=0,sleep=on", "-rtc", "clock=vm")
	}
	for i, m := range h.mounts {
		p.args = append(p.args,
			"-chardev", "socket,id="+m.Tag+",fd="+p.pass(h.shares[i].client),
			"-device", "vhost-user-fs-pci,chardev="+m.Tag+",tag="+m.Tag)
	}
	return p.start()
}
