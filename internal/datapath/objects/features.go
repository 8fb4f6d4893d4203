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
	// Name is the common name of the feature.
	Name string
	// Use tells what it is used for.
	Use string
	// Needs tells how to get it: a Linux version, an option of the kernel's configuration, a command.
	Needs string
	// Probe returns an error if the feature is missing, or else a detail to show, which may be empty. It changes nothing.
	Probe func() (detail string, err error)
}

// Features returns the features that a datapath under root, /sys/fs/bpf if empty, needs, and others that eBPF networks
// use.
func Features(root string) []Feature {
	return []Feature{
		{"bpffs", "where programs and tables are pinned", "mount -t bpf bpf /sys/fs/bpf",
			probeBPFFS(cmp.Or(root, "/sys/fs/bpf"))},
		{"BTF", "programs that read the kernel's own types", "CONFIG_DEBUG_INFO_BTF", exists("/sys/kernel/btf/vmlinux")},
		{"BPF JIT", "programs at full speed", "CONFIG_BPF_JIT and net.core.bpf_jit_enable=1", probeJIT},
		{"tcx", "services per packet", "Linux 6.6", func() (string, error) { return "", probeTCX() }},
		{
			"bpf_redirect_peer", "delivery into a pod past the host's stack", "Linux 5.10",
			func() (string, error) { return "", features.HaveProgramHelper(ebpf.SchedCLS, asm.FnRedirectPeer) },
		},
		{"netkit programs", "programs inside netkit devices", "CONFIG_NETKIT, since Linux 6.7", probeNetkit},
		{"cgroup2", "where socket programs are attached", "mount -t cgroup2 cgroup2 /sys/fs/cgroup", cgroup.Root},
		{"socket programs", "services at connect(), sendmsg() and recvmsg()", "CONFIG_CGROUP_BPF, since Linux 5.8",
			probeSocket},
		{
			"bpf_get_netns_cookie", "services for chosen namespaces only", "Linux 5.7",
			func() (string, error) {
				return "", features.HaveProgramHelper(ebpf.CGroupSockAddr, asm.FnGetNetnsCookie)
			},
		},
		{"sockmap", "sockets joined past the stack", "CONFIG_BPF_STREAM_PARSER", probeSockmap},
		{"XDP", "programs in drivers", "Linux 4.8", func() (string, error) { return "", features.HaveProgramType(ebpf.XDP) }},
		{"AF_XDP", "packets to user space past the stack", "CONFIG_XDP_SOCKETS", probeAFXDP},
	}
}

// exists returns a probe for a file.
func exists(path string) func() (string, error) {
	return func() (string, error) {
		_, err := os.Stat(path)
		return "", err
	}
}

func probeBPFFS(path string) func() (string, error) {
	return func() (string, error) {
		if err := checkFilesystem(path); err != nil {
			return "", err
		}
		return path, nil
	}
}

// probeJIT loads a program and asks whether the kernel compiled it. net.core.bpf_jit_enable exists in the initial
// network namespace only.
func probeJIT() (string, error) {
	p, err := ebpf.NewProgram(passing(ebpf.SchedCLS, ebpf.AttachNone))
	if err != nil {
		return "", fmt.Errorf("load a program: %w", err)
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return "", fmt.Errorf("read a program's info: %w", err)
	}
	if _, err := info.JitedSize(); err != nil {
		return "", fmt.Errorf("programs are interpreted: %w", err)
	}
	return "", nil
}

// probeNetkit attaches a program to a device that cannot exist: a kernel with netkit looks for the device.
func probeNetkit() (string, error) {
	p, err := ebpf.NewProgram(passing(ebpf.SchedCLS, ebpf.AttachNetkitPrimary))
	if err != nil {
		return "", fmt.Errorf("load a program: %w", err)
	}
	defer func() { _ = p.Close() }()
	_, err = link.AttachNetkit(link.NetkitOptions{Interface: 1 << 30, Program: p, Attach: ebpf.AttachNetkitPrimary})
	if errors.Is(err, ebpf.ErrNotSupported) {
		return "", withoutNetkit(err)
	}
	return "", nil
}

// withoutNetkit tells why a kernel lacks netkit.
func withoutNetkit(err error) error {
	e := &UnsupportedError{Feature: "netkit", Kernel: "6.7", Err: err}
	if version, err := features.LinuxVersionCode(); err == nil && version >= 6<<16|7<<8 {
		e.Option = "CONFIG_NETKIT"
	}
	return e
}

// probeSocket loads a program for each hook at sockets.
func probeSocket() (string, error) {
	for _, h := range AttachCgroup.Hooks() {
		p, err := ebpf.NewProgram(passing(ebpf.CGroupSockAddr, h.AttachType()))
		if err != nil {
			return "", fmt.Errorf("load a program for %s: %w", h.AttachType(), err)
		}
		_ = p.Close()
	}
	return "", nil
}

// passing returns a program that passes everything.
func passing(kind ebpf.ProgramType, attach ebpf.AttachType) *ebpf.ProgramSpec {
	verdict := int32(0) // TC_ACT_OK
	if kind == ebpf.CGroupSockAddr {
		verdict = 1
	}
	return &ebpf.ProgramSpec{
		Type: kind, AttachType: attach, License: "Dual BSD/GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, verdict), asm.Return()},
	}
}

func probeSockmap() (string, error) {
	if err := features.HaveMapType(ebpf.SockHash); err != nil {
		return "", err
	}
	return "", features.HaveProgramType(ebpf.SkMsg)
}

func probeAFXDP() (string, error) {
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	return "", unix.Close(fd)
}

// probeTCX returns an *UnsupportedError if the kernel has no tcx. It attaches a program to a device that cannot exist:
// a kernel with tcx looks for the device.
func probeTCX() error {
	p, err := ebpf.NewProgram(passing(ebpf.SchedCLS, ebpf.AttachNone))
	if err != nil {
		return fmt.Errorf("load a program: %w", err)
	}
	defer func() { _ = p.Close() }()
	l, err := link.AttachTCX(link.TCXOptions{Interface: 0, Program: p, Attach: ebpf.AttachTCXIngress})
	if err == nil {
		return l.Close()
	}
	if errors.Is(err, ebpf.ErrNotSupported) {
		return &UnsupportedError{Feature: "tcx", Kernel: "6.6", Err: err}
	}
	return nil
}

// ProbeSocket returns the reason why sockets cannot be translated here: an *UnsupportedError if the kernel lacks a
// feature, a *cgroup.Error if there is no cgroup2 hierarchy.
func ProbeSocket() error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("probe socket translation: %w", ErrNotRoot)
	}
	if _, err := cgroup.Root(); err != nil {
		return err
	}
	_, err := probeSocket()
	if errors.Is(err, unix.EINVAL) || errors.Is(err, ebpf.ErrNotSupported) {
		return &UnsupportedError{Feature: "cgroup program for getpeername", Kernel: "5.8", Err: err}
	}
	return err
}
