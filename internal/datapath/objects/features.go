// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"cmp"
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"mustang/internal/cgroup"
)

// Feature is an eBPF feature of the kernel.
type Feature struct {
	Name string // the common name of the feature
	Use  string // the feature's purpose
	// Needs names the source of the feature: a Linux version, an option of the kernel's configuration, a command.
	Needs string
	// Probe returns an error if the feature is missing, or else a detail to show, which may be empty. It changes nothing.
	Probe func() (detail string, err error)
}

// Features returns the features that a datapath under root, /sys/fs/bpf if empty, needs, and others of eBPF networks.
func Features(root string) []Feature {
	root = cmp.Or(root, "/sys/fs/bpf")
	plain := func(probe func() error) func() (string, error) {
		return func() (string, error) { return "", probe() }
	}
	helper := func(kind ebpf.ProgramType, fn asm.BuiltinFunc) func() (string, error) {
		return plain(func() error { return features.HaveProgramHelper(kind, fn) })
	}
	return []Feature{
		{"bpffs", "where programs and tables are pinned", "mount -t bpf bpf /sys/fs/bpf",
			func() (string, error) { return root, checkFilesystem(root) }},
		{"BTF", "programs that read the kernel's own types", "CONFIG_DEBUG_INFO_BTF", plain(func() error {
			_, err := os.Stat("/sys/kernel/btf/vmlinux")
			return err
		})},
		{"BPF JIT", "programs at full speed", "CONFIG_BPF_JIT and net.core.bpf_jit_enable=1", plain(probeJIT)},
		{"tcx", "services per packet", "Linux 6.6", plain(probeTCX)},
		{"bpf_redirect_peer", "delivery into a pod past the host's stack", "Linux 5.10",
			helper(ebpf.SchedCLS, asm.FnRedirectPeer)},
		{"netkit programs", "programs inside netkit devices", "CONFIG_NETKIT, since Linux 6.7", plain(probeNetkit)},
		{"cgroup2", "where socket programs are attached", "mount -t cgroup2 cgroup2 /sys/fs/cgroup", cgroup.Root},
		{"socket programs", "services at connect(), sendmsg() and recvmsg()", "CONFIG_CGROUP_BPF, since Linux 5.8",
			plain(probeSocket)},
		{"bpf_get_netns_cookie", "services for chosen namespaces only", "Linux 5.7",
			helper(ebpf.CGroupSockAddr, asm.FnGetNetnsCookie)},
		{"sockmap", "sockets joined past the stack", "CONFIG_BPF_STREAM_PARSER", plain(func() error {
			return cmp.Or(features.HaveMapType(ebpf.SockHash), features.HaveProgramType(ebpf.SkMsg))
		})},
		{"XDP", "programs in drivers", "Linux 4.8", plain(func() error { return features.HaveProgramType(ebpf.XDP) })},
		{"AF_XDP", "packets to user space past the stack", "CONFIG_XDP_SOCKETS", plain(func() error {
			fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			return unix.Close(fd)
		})},
	}
}

// UnsupportedError names a feature that the running kernel lacks, and the version that has it.
type UnsupportedError struct {
	Feature, Kernel string
	// Option is the missing option of the kernel's configuration, if the kernel is new enough; empty: it is too old.
	Option string
	Err    error
}

func (e *UnsupportedError) Error() string {
	if e.Option != "" {
		return "this kernel is built without " + e.Option
	}
	return fmt.Sprintf("this kernel lacks %s, which is in Linux since %s: %v", e.Feature, e.Kernel, e.Err)
}

// Unwrap returns the kernel's error.
func (e *UnsupportedError) Unwrap() error { return e.Err }

// Is makes the error match errors.ErrUnsupported.
func (e *UnsupportedError) Is(target error) bool { return target == errors.ErrUnsupported }

func withProgram(kind ebpf.ProgramType, at ebpf.AttachType, fn func(*ebpf.Program) error) error {
	verdict := int32(0) // TC_ACT_OK
	if kind == ebpf.CGroupSockAddr {
		verdict = 1
	}
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: kind, AttachType: at, License: "Dual BSD/GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, verdict), asm.Return()},
	})
	if err != nil {
		return fmt.Errorf("load a program: %w", err)
	}
	defer p.Close()
	return fn(p)
}

// probeJIT checks that the kernel compiled a program. net.core.bpf_jit_enable is only in the initial namespace.
func probeJIT() error {
	return withProgram(ebpf.SchedCLS, ebpf.AttachNone, func(p *ebpf.Program) error {
		info, err := p.Info()
		if err != nil {
			return fmt.Errorf("read a program's info: %w", err)
		}
		if _, err := info.JitedSize(); err != nil {
			return fmt.Errorf("programs are interpreted: %w", err)
		}
		return nil
	})
}

// probeNetkit attaches a program to a device that cannot exist: a kernel with netkit looks for the device.
func probeNetkit() error {
	return withProgram(ebpf.SchedCLS, ebpf.AttachNetkitPrimary, func(p *ebpf.Program) error {
		_, err := link.AttachNetkit(link.NetkitOptions{Interface: 1 << 30, Program: p, Attach: ebpf.AttachNetkitPrimary})
		if errors.Is(err, ebpf.ErrNotSupported) {
			return withoutNetkit(err)
		}
		return nil
	})
}

// withoutNetkit returns why a kernel lacks netkit.
func withoutNetkit(err error) error {
	e := &UnsupportedError{Feature: "netkit", Kernel: "6.7", Err: err}
	if version, err := features.LinuxVersionCode(); err == nil && version >= 6<<16|7<<8 {
		e.Option = "CONFIG_NETKIT"
	}
	return e
}

// probeTCX returns an *UnsupportedError if the kernel lacks tcx. It attaches a program to a device that cannot exist:
// a kernel with tcx looks for the device.
func probeTCX() error {
	return withProgram(ebpf.SchedCLS, ebpf.AttachNone, func(p *ebpf.Program) error {
		l, err := link.AttachTCX(link.TCXOptions{Interface: 0, Program: p, Attach: ebpf.AttachTCXIngress})
		switch {
		case err == nil:
			return l.Close()
		case errors.Is(err, ebpf.ErrNotSupported):
			return &UnsupportedError{Feature: "tcx", Kernel: "6.6", Err: err}
		}
		return nil
	})
}

func probeSocket() error {
	for _, h := range AttachCgroup.Hooks() {
		err := withProgram(ebpf.CGroupSockAddr, h.AttachType(), func(*ebpf.Program) error { return nil })
		if err != nil {
			return fmt.Errorf("%s: %w", h.AttachType(), err)
		}
	}
	return nil
}

// ProbeSocket returns the reason why sockets cannot be translated here: an *UnsupportedError if the kernel lacks a
// feature, a *cgroup.Error without a cgroup2 hierarchy.
func ProbeSocket() error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("probe socket translation: %w", ErrNotRoot)
	}
	if _, err := cgroup.Root(); err != nil {
		return err
	}
	err := probeSocket()
	if errors.Is(err, unix.EINVAL) || errors.Is(err, ebpf.ErrNotSupported) {
		return &UnsupportedError{Feature: "cgroup program for getpeername", Kernel: "5.8", Err: err}
	}
	return err
}
