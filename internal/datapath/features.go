// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Feature is something that a kernel may have for eBPF programs, and what it is good for.
type Feature struct {
	// Name is what users know it by.
	Name string
	// Use says what it is used for.
	Use string
	// Needs names what brings it: a Linux version, an option of the kernel's configuration, a command.
	Needs string
	// Probe returns nil and maybe a detail for people, or an error if the feature is not there. It changes nothing.
	Probe func() (detail string, err error)
}

// Features returns what services by eBPF need, and what others make of eBPF.
func Features() []Feature {
	return []Feature{
		{"bpffs", "where programs and tables are pinned", "mount -t bpf bpf /sys/fs/bpf", probeBPFFS},
		{"BTF", "programs that read the kernel's own types", "CONFIG_DEBUG_INFO_BTF", exists("/sys/kernel/btf/vmlinux")},
		{"BPF JIT", "programs at full speed", "CONFIG_BPF_JIT and net.core.bpf_jit_enable=1", probeJIT},
		{"tcx", "services per packet", "Linux 6.6", func() (string, error) { return "", probe() }},
		{
			"bpf_redirect_peer", "delivery into a pod past the host's stack", "Linux 5.10",
			func() (string, error) { return "", features.HaveProgramHelper(ebpf.SchedCLS, asm.FnRedirectPeer) },
		},
		{"netkit programs", "programs inside netkit devices", "CONFIG_NETKIT, since Linux 6.7", probeNetkit},
		{"cgroup2", "where socket programs are attached", "mount -t cgroup2 cgroup2 /sys/fs/cgroup", CgroupRoot},
		{"socket programs", "services at connect(), sendmsg() and recvmsg()", "CONFIG_CGROUP_BPF, since Linux 5.8", probeSocket},
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

// exists makes a probe of a file.
func exists(path string) func() (string, error) {
	return func() (string, error) {
		_, err := os.Stat(path)
		return "", err
	}
}

func probeBPFFS() (string, error) {
	const path = "/sys/fs/bpf"
	if err := checkFilesystem(path); err != nil {
		return "", err
	}
	return path, nil
}

func probeJIT() (string, error) {
	value, err := os.ReadFile("/proc/sys/net/core/bpf_jit_enable")
	if err == nil && strings.TrimSpace(string(value)) == "0" {
		err = errors.New("it is switched off")
	}
	return "", err
}

// probeNetkit attaches a program to a device that cannot exist: a kernel that knows netkit looks for the device.
func probeNetkit() (string, error) {
	p, err := ebpf.NewProgram(passing(ebpf.SchedCLS, ebpf.AttachNetkitPrimary))
	if err != nil {
		return "", fmt.Errorf("load a program: %w", err)
	}
	defer func() { _ = p.Close() }()
	_, err = link.AttachNetkit(link.NetkitOptions{Interface: 1 << 30, Program: p, Attach: ebpf.AttachNetkitPrimary})
	if errors.Is(err, ebpf.ErrNotSupported) {
		return "", &UnsupportedError{Feature: "netkit", Kernel: "6.7", Err: err}
	}
	return "", nil
}

// probeSocket loads a program for each hook at sockets.
func probeSocket() (string, error) {
	for _, attach := range []ebpf.AttachType{
		ebpf.AttachCGroupInet4Connect, ebpf.AttachCGroupInet6Connect,
		ebpf.AttachCGroupUDP4Sendmsg, ebpf.AttachCGroupUDP6Sendmsg,
		ebpf.AttachCGroupUDP4Recvmsg, ebpf.AttachCGroupUDP6Recvmsg,
		ebpf.AttachCgroupInet4GetPeername, ebpf.AttachCgroupInet6GetPeername,
	} {
		p, err := ebpf.NewProgram(passing(ebpf.CGroupSockAddr, attach))
		if err != nil {
			return "", fmt.Errorf("load a program for %s: %w", attach, err)
		}
		_ = p.Close()
	}
	return "", nil
}

// passing is a program that lets all through.
func passing(kind ebpf.ProgramType, attach ebpf.AttachType) *ebpf.ProgramSpec {
	verdict := int32(0) // of packets: pass them
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
