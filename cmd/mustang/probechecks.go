// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"mustang/internal/datapath/objects"
	"mustang/internal/podlink"
	"mustang/internal/rtnl"
)

// debianPackage starts the requirement of a program.
const debianPackage = "Debian package "

func featureChecks() (checks []check) {
	for _, f := range objects.Features("") {
		run := func(*prober) (string, error) { return f.Probe() }
		checks = append(checks, check{group: "ebpf", name: f.Name, use: f.Use, needs: f.Needs, run: run})
	}
	const virtualization = "a processor with virtualization, module kvm_intel or kvm_amd"
	const bandwidth = "wires with a rate, bandwidth of pods without fq"
	return append(checks, []check{
		{"netfilter", "br_netfilter", "firewall rules for bridged packets", "", "br_netfilter", bridgeNetfilter},
		{"netfilter", "nf_conntrack", "connection tracking, for iptables and nftables", "", "nf_conntrack",
			try(rtnl.Conn.TryConntrack)},
		{"netfilter", "nf_tables", "nftables", "", "nf_tables", try(rtnl.Conn.TryNFTables)},
		{"device", "tun", "link modes tap and tun, VMs", "", "tun", tunFeatures},
		{"device", "vxlan", "pod networks across hosts", "", "vxlan", device("vxlan")},
		{"device", "geneve", "pod networks across hosts", "", "geneve", device("geneve")},
		{"device", "dummy", "uplinks without a network", "", "dummy", device("dummy")},
		{"queue", "netem", "wires with delay and loss", "", "sch_netem", queue("netem")},
		{"queue", "fq", "bandwidth of pods with departure times", "", "sch_fq", queue("fq")},
		{"queue", "tbf", bandwidth, "", "sch_tbf", queue("tbf")},
		{"vm", "kvm", "VMs at full speed instead of emulation", virtualization, "", file("/dev/kvm")},
		{"vm", "vhost_net", "packets of VMs without QEMU", "", "vhost_net", file("/dev/vhost-net")},
		program("vm", qemuProgram(), "VMs, bench --vm", "qemu-system-x86"),
		{"vm", "virtiofsd", "bench --vm", debianPackage + "qemu-system-common", "", file("/usr/lib/qemu/virtiofsd")},
		program("program", "iptables", "lab --via iptables", "iptables"),
		program("program", "nft", "lab --via nftables", "nftables"),
		program("program", "ovs-vswitchd", "link modes of Open vSwitch", "openvswitch-switch"),
		program("program", "iperf3", "manual measurements", "iperf3"),
	}...)
}

// bridgeNetfilter looks for the sysctls of br_netfilter, which the kernel does not load on demand.
func bridgeNetfilter(p *prober) (string, error) {
	_, err := rtnl.In(p.scratch).Sysctl("net/bridge/bridge-nf-call-iptables")
	if errors.Is(err, fs.ErrNotExist) {
		return "", errors.New("not loaded")
	}
	return "", err
}

func tunFeatures(*prober) (string, error) {
	tun, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	defer tun.Close()
	switch flags, err := unix.IoctlGetUint32(int(tun.Fd()), unix.TUNGETFEATURES); {
	case err != nil:
		return "", fmt.Errorf("read the features of /dev/net/tun: %w", err)
	case flags&unix.IFF_VNET_HDR == 0:
		return "no vnet_hdr: packets only, no batches", nil
	case flags&unix.IFF_MULTI_QUEUE == 0:
		return "vnet_hdr", nil
	}
	return "vnet_hdr, multi_queue", nil
}

// try returns a check that tries something in the temporary namespace.
func try(run func(rtnl.Conn) error) func(*prober) (string, error) {
	return func(p *prober) (string, error) { return "", run(rtnl.In(p.scratch)) }
}

func device(kind string) func(*prober) (string, error) {
	return try(func(n rtnl.Conn) error { return n.TryDevice(kind) })
}

func queue(kind string) func(*prober) (string, error) {
	return try(func(n rtnl.Conn) error { return n.TryQdisc(kind) })
}

func program(group, name, use, from string) check {
	return check{group: group, name: name, use: use, needs: debianPackage + from, run: func(*prober) (string, error) {
		return exec.LookPath(name)
	}}
}

// file returns a check that opens a file.
func file(path string) func(*prober) (string, error) {
	return func(*prober) (string, error) {
		f, err := os.Open(path)
		if err != nil {
			return "", err
		}
		return path, f.Close()
	}
}

func qemuProgram() string {
	names := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}
	return "qemu-system-" + cmp.Or(names[runtime.GOARCH], runtime.GOARCH)
}

func linkChecks() (checks []check) {
	for _, mode := range podlink.Modes() {
		checks = append(checks, check{name: mode.Name(), run: func(p *prober) (string, error) {
			if err := mode.Probe(); err != nil {
				return "", err
			}
			return modeDetail(p, mode) + bigTCPDetail(p, mode), nil
		}})
	}
	return checks
}

func modeDetail(p *prober, mode podlink.Mode) string {
	switch mode.Traits().Needs {
	case podlink.NeedsUplink:
		return "over an uplink"
	case podlink.NeedsRelay:
		return "with a relay in user space"
	case podlink.NeedsOpenVSwitch:
		if rtnl.In(p.scratch).TryGenericFamily("ovs_datapath") != nil {
			return "with Open vSwitch's user-space datapath, without module openvswitch"
		}
		return "with Open vSwitch's kernel datapath"
	}
	return "with a device on the host for each pod"
}

// missing describes a missing requirement on one line, with the kernel's error where that adds something.
func (c check) missing(p *prober, err error) string {
	var mode *podlink.UnsupportedError
	needs := c.needs
	if c.module != "" {
		needs = p.module(c.module)
	}
	switch {
	case errors.As(err, &mode) && older(p.kernel, mode.Since):
		return fmt.Sprintf("%s: since Linux %s (module %s), this is %s", mode.Feature, mode.Since, mode.Module, p.kernel)
	case mode != nil:
		return fmt.Sprintf("%s: %s (since Linux %s)", mode.Feature, p.module(mode.Module), mode.Since)
	case needs == "":
		return oneLine(err)
	case absent(err):
		return needs
	}
	for next := errors.Unwrap(err); next != nil; next = errors.Unwrap(next) {
		err = next
	}
	return needs + " (" + oneLine(err) + ")"
}

// module describes how to get a missing module: it may be part of this kernel, as modules.dep lists them.
func (p *prober) module(name string) string {
	list, err := os.ReadFile(filepath.Join("/lib/modules", p.kernel, "modules.dep"))
	listed := regexp.MustCompile(`(?m)/` + strings.ReplaceAll(regexp.QuoteMeta(name), "_", "[-_]") + `\.ko[.a-z]*:`)
	switch {
	case err != nil: // no modules of this kernel are installed
		return "module " + name
	case listed.Match(list):
		return "modprobe " + name
	}
	return "module " + name + ", which is not part of this kernel"
}

// absent reports whether an error only means that something is missing.
func absent(err error) bool {
	var feature *objects.UnsupportedError
	return errors.As(err, &feature) || errors.Is(err, objects.ErrNoBPFFS) || errors.Is(err, errors.ErrUnsupported) ||
		errors.Is(err, fs.ErrNotExist) || errors.Is(err, exec.ErrNotFound)
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// older reports whether a kernel release is before a version such as "6.7".
func older(release, version string) bool {
	var have, want [3]int
	_, _ = fmt.Sscanf(release, "%d.%d.%d", &have[0], &have[1], &have[2])
	_, _ = fmt.Sscanf(version, "%d.%d.%d", &want[0], &want[1], &want[2])
	return slices.Compare(have[:], want[:]) < 0
}

// bigTCPDetail describes whether TCP packets of up to 256 KiB cross the pods' links of an available mode.
func bigTCPDetail(p *prober, mode podlink.Mode) string {
	switch traits := mode.Traits(); {
	case !traits.BigTCP:
		return ", no BIG TCP"
	case traits.Needs == podlink.NeedsOpenVSwitch:
		return ""
	case older(p.kernel, "6.3"): // which has it over IPv4
		return ", no BIG TCP in this kernel"
	}
	return ", BIG TCP"
}
