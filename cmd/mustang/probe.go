// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/datapath/objects"
	"mustang/internal/distro"
	"mustang/internal/netns"
	"mustang/internal/podlink"
	"mustang/internal/rtnl"
)

func (c *config) probe() *cobra.Command {
	return cli.Listing(&cobra.Command{
		Use:   "probe",
		Short: "Show the link modes and features of this machine, and what the others need",
		Long: `Show the link modes and features of this machine, and what the others need: a kernel
version, a module, an option of the kernel's configuration, or the command that installs a program.

The command tries each in a temporary network namespace. It changes nothing else, but the
kernel may load modules. The exit code is 0 even if features are missing. Needs root.`,
		Example: "  mustang probe\n  mustang probe -o json",
	}, func(format string) error {
		report, err := runProbe()
		if err != nil {
			return err
		}
		if format == "json" {
			return cli.PrintJSON(c.Stdout, report)
		}
		return report.print(c.Stdout)
	})
}

type check struct {
	group, name string
	use         string // the purpose of the feature
	// needs names the requirement of a missing feature; module is a kernel module that provides it.
	needs, module string
	// run returns details for the table, or an error if the feature is missing.
	run func(p *prober) (detail string, err error)
}

type prober struct {
	scratch *netns.Namespace // temporary
	kernel  string           // the release of the running one
}

type probeReport struct {
	Schema    int           `json:"schema"`
	Kernel    string        `json:"kernel"`
	Machine   string        `json:"machine"`
	LinkModes []checkResult `json:"link_modes"`
	Features  []checkResult `json:"features"`
}

// checkResult is the result of a check. A feature is unavailable if its check fails for any reason.
type checkResult struct {
	Group     string `json:"group,omitempty"`
	Name      string `json:"name"`
	Available bool   `json:"available"`
	Detail    string `json:"detail,omitempty"`
	Use       string `json:"use,omitempty"`
	Missing   string `json:"missing,omitempty"` // the requirement, and the kernel's error
	Module    string `json:"module,omitempty"`  // the kernel module of a missing link mode
	Since     string `json:"since,omitempty"`   // the first Linux version that has it
}

func runProbe() (_ probeReport, err error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return probeReport{}, fmt.Errorf("read the release of the kernel: %w", err)
	}
	scratch, err := netns.New()
	if err != nil {
		return probeReport{}, err
	}
	defer func() { err = errors.Join(err, scratch.Close()) }()
	p := &prober{scratch, unix.ByteSliceToString(name.Release[:])}
	var links []check
	for _, mode := range podlink.Modes() {
		links = append(links, check{name: mode.Name(), run: func(p *prober) (string, error) {
			if err := mode.Probe(); err != nil {
				return "", err
			}
			return modeDetail(p, mode), nil
		}})
	}
	return probeReport{
		cli.Schema, p.kernel, unix.ByteSliceToString(name.Machine[:]), p.runAll(links), p.runAll(featureChecks()),
	}, nil
}

func (p *prober) runAll(checks []check) (results []checkResult) {
	for _, c := range checks {
		detail, err := c.run(p)
		r := checkResult{Group: c.group, Name: c.name, Use: c.use, Available: err == nil, Detail: detail}
		if err != nil {
			r.Missing = c.missing(p, err)
		}
		if mode, ok := errors.AsType[*podlink.UnsupportedError](err); ok {
			r.Module, r.Since = mode.Module, mode.Since
		}
		results = append(results, r)
	}
	return results
}

func (r probeReport) print(w io.Writer) error {
	fmt.Fprintf(w, "kernel %s on %s\n\n", r.Kernel, r.Machine)
	yesNo := map[bool]string{true: "yes", false: "no"}
	row := func(c checkResult) []any { return []any{c.Group, c.Name, yesNo[c.Available], c.note()} }
	modes := cli.Convert(r.LinkModes, func(mode checkResult) []any { return row(mode)[1:] })
	if err := cli.PrintTable(w, []string{"LINK MODE", "AVAILABLE", "DETAILS"}, modes); err != nil {
		return err
	}
	fmt.Fprintln(w)
	return cli.PrintTable(w, []string{"GROUP", "FEATURE", "AVAILABLE", "DETAILS"}, cli.Convert(r.Features, row))
}

func (r checkResult) note() string {
	switch {
	case !r.Available:
		return "missing: " + r.Missing
	case r.Detail != "" && r.Use != "":
		return r.Use + " (" + r.Detail + ")"
	}
	return r.Use + r.Detail
}

func featureChecks() (checks []check) {
	for _, f := range objects.Features("") {
		run := func(*prober) (string, error) { return f.Probe() }
		checks = append(checks, check{group: "ebpf", name: f.Name, use: f.Use, needs: f.Needs, run: run})
	}
	const virtualization = "a processor with virtualization, module kvm_intel or kvm_amd"
	machines := map[string]string{"amd64": "x86_64", "arm64": "aarch64"} // QEMU's names
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
		program("vm", "qemu-system-"+cmp.Or(machines[runtime.GOARCH], runtime.GOARCH), "VMs, bench --vm", "qemu-system-x86"),
		{"vm", "virtiofsd", "bench --vm", distro.Missing("", "qemu-system-common").Remedy, "",
			file("/usr/lib/qemu/virtiofsd")},
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
	return check{group: group, name: name, use: use, needs: distro.Missing(name, from).Remedy,
		run: func(*prober) (string, error) { return exec.LookPath(name) }}
}

func file(path string) func(*prober) (string, error) {
	return func(*prober) (string, error) {
		f, err := os.Open(path)
		if err != nil {
			return "", err
		}
		return path, f.Close()
	}
}

// modeDetail describes an available mode, and whether TCP packets of up to 256 KiB cross the pods' links.
func modeDetail(p *prober, mode podlink.Mode) string {
	detail, bigTCP := "with a device on the host for each pod", ", BIG TCP"
	if older(p.kernel, "6.3") { // which has it over IPv4
		bigTCP = ", no BIG TCP in this kernel"
	}
	switch mode.Traits().Needs {
	case podlink.NeedsUplink:
		detail = "over an uplink"
	case podlink.NeedsRelay:
		detail = "with a relay in user space"
	case podlink.NeedsOpenVSwitch:
		detail, bigTCP = "with Open vSwitch's kernel datapath", ""
		if rtnl.In(p.scratch).TryGenericFamily("ovs_datapath") != nil {
			detail = "with Open vSwitch's user-space datapath, without module openvswitch"
		}
	}
	if !mode.Traits().BigTCP {
		bigTCP = ", no BIG TCP"
	}
	return detail + bigTCP
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
	case errors.As(err, new(*objects.UnsupportedError)), errors.Is(err, objects.ErrNoBPFFS),
		errors.Is(err, errors.ErrUnsupported), errors.Is(err, fs.ErrNotExist), errors.Is(err, exec.ErrNotFound):
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

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// older reports whether a kernel release is before a version such as "6.7".
func older(release, version string) bool {
	var have, want [3]int
	_, _ = fmt.Sscanf(release, "%d.%d.%d", &have[0], &have[1], &have[2])
	_, _ = fmt.Sscanf(version, "%d.%d.%d", &want[0], &want[1], &want[2])
	return slices.Compare(have[:], want[:]) < 0
}
