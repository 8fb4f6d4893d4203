// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"mustang/internal/datapath"
)

// debianPackage starts the needs of a check for a program.
const debianPackage = "Debian package "

// featureChecks are the checks that are not on link modes.
func featureChecks() []check {
	var checks []check
	for _, f := range datapath.Features() {
		checks = append(checks, check{
			group: "ebpf", name: f.Name, use: f.Use, needs: f.Needs,
			run: func(*prober) (string, error) { return f.Probe() },
		})
	}
	checks = append(checks,
		module("netfilter", "br_netfilter", "bridged packets through firewall rules", bridgeNetfilter),
		module("netfilter", "nf_conntrack", "connection tracking, for iptables and nftables", conntrack),
		module("netfilter", "nf_tables", "nftables", nfTables),
		module("device", "tun", "link modes tap and tun, VMs", tunDevice),
		device("vxlan", "pod networks across hosts"),
		device("geneve", "pod networks across hosts"),
		device("dummy", "uplinks that lead nowhere"),
		qdisc("netem", "wires with delay and loss"),
		qdisc("fq", "bandwidth of pods, by departure times"),
		qdisc("tbf", "wires with a rate, bandwidth of pods without fq"),
		check{
			group: "vm", name: "kvm", use: "VMs at full speed, else emulated",
			needs: "a processor that may run VMs, module kvm_intel or kvm_amd", run: file("/dev/kvm"),
		},
		module("vm", "vhost_net", "a VM's packets past QEMU", file("/dev/vhost-net")),
		program("vm", qemuProgram(), "VMs, bench --vm", "qemu-system-x86"),
		check{
			group: "vm", name: "virtiofsd", use: "bench --vm",
			needs: debianPackage + "qemu-system-common", run: file("/usr/lib/qemu/virtiofsd"),
		},
		program("program", "iptables", "lab --via iptables", "iptables"),
		program("program", "nft", "lab --via nftables", "nftables"),
		program("program", "ovs-vswitchd", "link modes of Open vSwitch", "openvswitch-switch"),
		program("program", "iperf3", "to measure by hand", "iperf3"),
	)
	return checks
}

// bridgeNetfilter looks for the sysctls that br_netfilter has in every
// namespace. The kernel doesn't load it by itself.
func bridgeNetfilter(p *prober) (string, error) {
	_, err := p.scratch.Sysctl("net/bridge/bridge-nf-call-iptables")
	if errors.Is(err, fs.ErrNotExist) {
		return "", errors.New("it is not loaded")
	}
	return "", err
}

func conntrack(p *prober) (string, error) {
	_, err := p.scratch.Flows()
	return "", err
}

func nfTables(p *prober) (string, error) { return "", p.scratch.TryNFTables() }

// tunDevice asks /dev/net/tun what it can do.
func tunDevice(*prober) (string, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("open /dev/net/tun: %w", err)
	}
	defer unix.Close(fd)
	flags, err := unix.IoctlGetUint32(fd, unix.TUNGETFEATURES)
	if err != nil {
		return "", fmt.Errorf("ask /dev/net/tun for its features: %w", err)
	}
	if flags&unix.IFF_VNET_HDR == 0 {
		return "no vnet_hdr: packets only, no batches", nil
	}
	detail := []string{"vnet_hdr"}
	if flags&unix.IFF_MULTI_QUEUE != 0 {
		detail = append(detail, "multi_queue")
	}
	return strings.Join(detail, ", "), nil
}

// module is a check for what a kernel module of that name brings.
func module(group, name, use string, run func(*prober) (string, error)) check {
	return check{group: group, name: name, use: use, module: name, run: run}
}

// device is a check for a kind of device.
func device(kind, use string) check {
	return module("device", kind, use, func(p *prober) (string, error) { return "", p.scratch.TryDevice(kind) })
}

// qdisc is a check for a kind of queueing discipline.
func qdisc(kind, use string) check {
	c := module("queue", kind, use, func(p *prober) (string, error) { return "", p.scratch.TryQdisc(kind) })
	c.module = "sch_" + kind
	return c
}

// program is a check for a program that a Debian package brings.
func program(group, name, use, from string) check {
	return check{group: group, name: name, use: use, needs: debianPackage + from, run: func(*prober) (string, error) {
		return exec.LookPath(name)
	}}
}

// file makes a check of a file that this process may read.
func file(path string) func(*prober) (string, error) {
	return func(*prober) (string, error) {
		f, err := os.Open(path)
		if err != nil {
			return "", err
		}
		return path, f.Close()
	}
}

// qemuProgram is the system emulator for this machine's processor.
func qemuProgram() string {
	names := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}
	if name, ok := names[runtime.GOARCH]; ok {
		return "qemu-system-" + name
	}
	return "qemu-system-" + runtime.GOARCH
}
