// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"cmp"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"mustang/internal/debian"
	"mustang/internal/lab/labfile"
	"mustang/internal/nodenet"
	"mustang/internal/ovs"
	"mustang/internal/podlink"
	"mustang/internal/qdisc"
	"mustang/internal/suggest"
	"mustang/internal/vm"
)

// Datapaths of a lab.
const (
	DatapathKernel = "kernel"
	DatapathEBPF   = "ebpf"
)

// Implementations of a lab's service.
const (
	ViaNone     = "none"
	ViaIPTables = "iptables"
	ViaNFTables = "nftables"
	ViaIPVS     = "ipvs"
	ViaEBPFTC   = "ebpf-tc"
	// ViaEBPFSocket translates at the socket: established connections cost nothing more.
	ViaEBPFSocket = "ebpf-socket"
)

// Links of labs with two hosts and no pods.
const (
	// LinkHost has the hosts' addresses on the wire itself.
	LinkHost = "host"
	// LinkHostBridge has them on a bridge whose only port is the wire.
	LinkHostBridge = "host-bridge"
)

// Overlays between the pods of two hosts.
const (
	OverlayNone = "none"
	// OverlayVXLAN makes one segment of the pods, by a VXLAN device on their bridge or a VXLAN port of their Open vSwitch.
	// Hosts of routed pods route to the other host's pods through a VXLAN device, as the nodes of a cluster do.
	OverlayVXLAN = "vxlan"
	// OverlayBridgedVeth and OverlayBridgedInternal are an Open vSwitch with a VXLAN port below the pods' bridge. A
	// veth pair joins the two, or an internal port of the Open vSwitch that is also a port of the bridge.
	OverlayBridgedVeth     = "vxlan-ovs-veth"
	OverlayBridgedInternal = "vxlan-ovs-internal"
)

// Options describe a lab to build.
type Options struct {
	Name     string `json:"name"`     // identifies the lab: 1 to 40 lower-case letters, digits and dashes
	Topology string `json:"topology"` // the name of one of [Topologies]
	// Link is the name of a link mode, see podlink.Modes; or, with two hosts, [LinkHost] or [LinkHostBridge].
	Link string `json:"link"`
	// NetfilterCall makes a bridge pass its packets to the host's firewall rules.
	NetfilterCall bool   `json:"netfilter_call"`
	Datapath      string `json:"datapath"` // [DatapathKernel] or [DatapathEBPF]
	// Via is the implementation of the service: none, iptables, nftables, ipvs or ebpf-socket with the kernel's
	// datapath, ebpf-tc or ebpf-socket with eBPF. Empty means none, or ebpf-tc with eBPF.
	Via string `json:"via"`
	// Services is the number of IPv4 services in topology pod-links, at most [MaxServices]; 0 means only its own.
	Services int `json:"services,omitempty"`
	// Ports are further ports of the service of pod-a, after [ServicePort], in topology pod-links; 0 is none.
	Ports [MaxPorts]uint16 `json:"ports,omitzero"`
	// Policy enforces a network policy for pod-a in topology pod-links, with PolicyRules rules: [ViaIPTables] or
	// [ViaNFTables] with the kernel's datapath, [ViaEBPFTC] with eBPF. Empty means none.
	Policy      string `json:"policy,omitempty"`
	PolicyRules int    `json:"policy_rules,omitempty"`
	Unguarded   bool   `json:"unguarded,omitempty"` // lets pods send from any address (datapath eBPF)
	// Offload makes the relay of links tap and tun carry batches of segments instead of packets.
	Offload bool `json:"offload,omitempty"`
	BigTCP  bool `json:"big_tcp,omitempty"` // lets IPv4 packets of up to 256 KiB cross the pods' links
	// Sockmap passes the data of TCP sockets past the stack, devices and policies, for comparison (datapath kernel).
	Sockmap bool `json:"sockmap,omitempty"`
	// Overlay joins the pods of two hosts: [OverlayNone] or a kind of VXLAN. Empty means none.
	Overlay string `json:"overlay,omitempty"`
	NAT     bool   `json:"nat,omitempty"`    // masquerades packets of pods that leave their host
	Guests  bool   `json:"guests,omitempty"` // makes the pods virtual machines
	// NoProxy leaves published ports of containers to firewall rules alone, without Docker's user-land proxy.
	NoProxy bool `json:"no_proxy,omitempty"`
	// Uplink is the device of this machine below the uplink of topology pod-to-network.
	Uplink UplinkDevice `json:"parent,omitzero"`
	// WireRate is the rate of the wire between two hosts in bits per second, and
	// WireDelay its delay in each direction; 0 means no limit.
	WireRate  uint64        `json:"wire_rate,omitempty"`
	WireDelay time.Duration `json:"wire_delay,omitempty"`
	// File describes the lab, in place of all other options but Name; nil for one of [Topologies].
	File *labfile.Lab `json:"file,omitempty"`
	// Disk is a directory for the files of plugins in topology node. Empty means beside the lab's record.
	Disk string `json:"disk,omitempty"`
}

// OptionError reports invalid options, as opposed to a lab that cannot be built.
type OptionError struct{ Err error }

func (e *OptionError) Error() string { return e.Err.Error() }
func (e *OptionError) Unwrap() error { return e.Err }

func optionErrorf(format string, args ...any) error {
	return &OptionError{Err: fmt.Errorf(format, args...)}
}

var validName = regexp.MustCompile("^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$")

func checkName(name string) error {
	if !validName.MatchString(name) {
		return optionErrorf("lab name %q: want 1 to 40 lower-case letters, digits and dashes", name)
	}
	return nil
}

func (o Options) withDefaults() (Options, error) {
	if o.File != nil {
		return o.ofFile()
	}
	o.Datapath = cmp.Or(o.Datapath, DatapathKernel)
	if o.Via == "" {
		o.Via = ViaNone
		if o.Datapath == DatapathEBPF {
			o.Via = ViaEBPFTC
		}
	}
	implementations := map[string][]string{
		DatapathKernel: {ViaNone, ViaIPTables, ViaNFTables, ViaIPVS, ViaEBPFSocket},
		DatapathEBPF:   {ViaEBPFTC, ViaEBPFSocket},
	}
	if _, err := podlink.Lookup(o.Link); err != nil && !o.hostsOnly() {
		return o, &OptionError{Err: err}
	}
	overlays := []string{OverlayNone, OverlayVXLAN, OverlayBridgedVeth, OverlayBridgedInternal}
	switch allowed, known := implementations[o.Datapath]; {
	case o.Overlay != "" && !slices.Contains(overlays, o.Overlay):
		return o, optionErrorf("overlay %q: want %s", o.Overlay, strings.Join(overlays, ", "))
	case checkName(o.Name) != nil:
		return o, checkName(o.Name)
	case !known:
		return o, optionErrorf("datapath %q: want kernel or ebpf", o.Datapath)
	case !slices.Contains(allowed, o.Via):
		all := slices.Concat(implementations[DatapathKernel], implementations[DatapathEBPF][:1])
		hint := suggest.Text(o.Via, all)
		if slices.Contains(all, o.Via) { // of the other datapath
			hint = ""
		}
		return o, optionErrorf("via %q: datapath %s takes %s%s", o.Via, o.Datapath, strings.Join(allowed, ", "), hint)
	}
	if o.topology().Name == "" {
		known := convert(Topologies(), func(t Topology) string { return t.Name })
		return o, optionErrorf("unknown topology %q (known: %s)%s", o.Topology, strings.Join(known, ", "),
			suggest.Text(o.Topology, known))
	}
	err := cmp.Or(o.checkTopology(), o.check(), CheckWire(o.WireRate, o.WireDelay))
	if err == nil && o.Topology == TopologyPodToNetwork {
		err = o.Uplink.Check()
	}
	return o, err
}

func (o Options) checkTopology() error {
	const one, two, toHost, toNetwork = TopologyPodLinks, TopologyTwoHosts, TopologyPodToHost, TopologyPodToNetwork
	withPods, ebpf := []string{one, two, toHost, toNetwork}, o.Datapath == DatapathEBPF
	for _, rule := range []struct {
		option     string
		set        bool
		topologies []string                  // none: all
		links      func(podlink.Traits) bool // nil: all
	}{
		{"link " + o.Link, o.hostsOnly(), []string{two, toHost, TopologyNode}, nil},
		{"overlay " + o.Overlay, o.hasOverlay(), []string{two}, func(t podlink.Traits) bool {
			return t.Bridge && (o.Overlay == OverlayVXLAN || t.Needs != podlink.NeedsOpenVSwitch) ||
				takesPodDatapath(t) && o.Overlay == OverlayVXLAN
		}},
		{"nat", o.NAT, []string{two, toHost, toNetwork}, takesNAT},
		{"wire rate and wire delay", o.WireRate != 0 || o.WireDelay != 0, []string{two, toHost, TopologyDocker}, nil},
		{"datapath ebpf", ebpf, withPods, nil},
		{"datapath ebpf of topology " + o.Topology, ebpf && o.Topology != one, nil, takesPodDatapath},
		{"via " + o.Via, o.Via != ViaNone && o.Via != ViaEBPFTC, []string{one}, nil},
		{fmt.Sprintf("services %d", o.Services), o.Services != 0, []string{one}, nil},
		{"service ports", len(o.ports()) > 0, []string{one}, nil},
		{"policy " + o.Policy, o.Policy != "" || o.PolicyRules != 0, []string{one}, nil},
		{"--sockmap", o.Sockmap, []string{one}, nil},
		{"netfilter call", o.NetfilterCall, withPods, func(t podlink.Traits) bool { return t.NetfilterCall }},
		{"guests", o.Guests, withPods, func(t podlink.Traits) bool { return t.Guests }},
		{"no-proxy", o.NoProxy, []string{TopologyDocker}, nil},
		{"uplink " + o.Uplink.Name, o.Uplink != UplinkDevice{}, []string{toNetwork}, nil},
		{"offload", o.Offload, nil, func(t podlink.Traits) bool { return t.Needs == podlink.NeedsRelay }},
		{"--big-tcp", o.BigTCP, nil, func(t podlink.Traits) bool { return t.BigTCP }},
		{"topology " + o.Topology + " without nat", o.Topology == toNetwork && !o.NAT, nil, func(t podlink.Traits) bool {
			return t.Routed || t.Needs == podlink.NeedsUplink && !t.Layer3 // the pod has an address of the uplink's network
		}},
	} {
		switch {
		case !rule.set:
		case len(rule.topologies) == 1 && rule.topologies[0] != o.Topology:
			return optionErrorf("%s: only in topology %s", rule.option, rule.topologies[0])
		case len(rule.topologies) > 0 && !slices.Contains(rule.topologies, o.Topology):
			return optionErrorf("%s: only in topologies %s", rule.option, strings.Join(rule.topologies, ", "))
		case rule.links != nil && !rule.links(o.traits()):
			return optionErrorf("%s: takes links %s, not %s", rule.option, linksWith(rule.links), o.Link)
		}
	}
	return nil
}

func (o Options) check() error {
	ports := append(o.ports(), ServicePort)
	slices.Sort(ports)
	t, none := o.traits(), o.Via == ViaNone
	hasPolicy, byRules := o.Policy != "" || o.PolicyRules != 0, o.Policy == ViaIPTables || o.Policy == ViaNFTables
	for _, rule := range []struct {
		broken bool
		err    error
	}{
		{o.hasOverlay() && (o.NAT || o.BigTCP),
			optionErrorf("overlay %s: not with nat or --big-tcp, as packets of pods leave in a tunnel", o.Overlay)},
		{o.NAT && o.Datapath == DatapathEBPF, optionErrorf("datapath ebpf: not with nat")},
		{!o.Guests && t.GuestsOnly, optionErrorf("link %s: only for guests", o.Link)},
		{o.Guests && o.Datapath != DatapathKernel, optionErrorf("datapath %s: not for guests", o.Datapath)},
		{o.Guests && !none, optionErrorf("via %s: guests lack services", o.Via)},
		{o.Sockmap && (o.Guests || o.Datapath != DatapathKernel || !none || hasPolicy),
			optionErrorf("--sockmap: only between namespaces, with --datapath kernel --via none, without a policy")},
		{o.Guests && o.Offload, optionErrorf("offload: only for links between namespaces, not for guests")},
		{o.Services < 0 || o.Services > MaxServices, optionErrorf("services %d: want 0 to %d", o.Services, MaxServices)},
		{o.Services > 0 && none, optionErrorf("services %d: want an implementation of services", o.Services)},
		{len(ports) > 1 && none, optionErrorf("service ports: want an implementation of services")},
		{len(slices.Compact(slices.Clone(ports))) < len(ports),
			optionErrorf("service ports: one is named twice; the service has %d in any case", ServicePort)},
		{o.Unguarded && o.Datapath != DatapathEBPF, optionErrorf("unguarded: datapath %s: no source guard", o.Datapath)},
		{hasPolicy && (o.PolicyRules < 1 || o.PolicyRules > MaxPolicyRules),
			optionErrorf("policy rules %d: want 1 to %d", o.PolicyRules, MaxPolicyRules)},
		{hasPolicy && (o.Datapath == DatapathEBPF && o.Policy != ViaEBPFTC || o.Datapath == DatapathKernel && !byRules),
			optionErrorf("policy %q: want %s with datapath ebpf, %s or %s with kernel", o.Policy, ViaEBPFTC, ViaIPTables,
				ViaNFTables)},
		{byRules && !none, optionErrorf("policy %s: not with the rules of services by %s", o.Policy, o.Via)},
		{byRules && !takesPodDatapath(t) && !o.NetfilterCall,
			optionErrorf("policy %s: packets on link %s pass no rules of the host", o.Policy, o.Link)},
		{o.Topology == TopologyDocker && o.Link != dockerLink,
			optionErrorf("link %q: topology docker has link %s", o.Link, dockerLink)},
		{o.Topology == TopologyNode && o.Link != LinkHost,
			optionErrorf("link %s: topology %s lacks pods, want %s", o.Link, o.Topology, LinkHost)},
		{o.Disk != "" && !filepath.IsAbs(o.Disk), optionErrorf("disk %q: want an absolute path", o.Disk)},
	} {
		if rule.broken {
			return rule.err
		}
	}
	return nil
}

func (o Options) traits() podlink.Traits {
	if mode, err := podlink.Lookup(o.Link); err == nil {
		return mode.Traits()
	}
	return podlink.Traits{} // of hosts without pods
}

func linksWith(match func(podlink.Traits) bool) string {
	var names []string
	for _, mode := range slices.Concat(podlink.Modes(), podlink.GuestModes()) {
		if match(mode.Traits()) {
			names = append(names, mode.Name())
		}
	}
	return strings.Join(names, ", ")
}

// takesNAT: the pods' packets pass the host's firewall rules, and the kernel alone carries them.
func takesNAT(t podlink.Traits) bool { return t.HostSide && t.Needs == podlink.NeedsNothing }

// takesPodDatapath: the host routes all packets of its pod, an endpoint.
func takesPodDatapath(t podlink.Traits) bool { return takesNAT(t) && t.Routed }

// CheckWire returns an [*OptionError] if a rate in bits per second or a delay is out of range; 0 means no limit.
func CheckWire(rate uint64, delay time.Duration) error {
	if err := qdisc.CheckEmulation(rate, delay); err != nil {
		return optionErrorf("wire %w", err)
	}
	return nil
}

// HookChain is a chain of rules at a netfilter hook.
type HookChain = nodenet.HookChain

// Hooks returns the nftables chains at the IP hooks of a place, including the chains of iptables-nft.
func (l *Lab) Hooks(place string) ([]HookChain, error) {
	ns, err := l.Namespace(place)
	if err != nil {
		return nil, err
	}
	chains, err := nodenet.HookChains(ns)
	if err != nil {
		return nil, fmt.Errorf("netfilter hooks of %s: %w", place, err)
	}
	return chains, nil
}

// CheckInstalled returns a [*debian.MissingError] if a program that the lab needs is not installed. It needs no root.
func (o Options) CheckInstalled() error {
	onPath := func(name, debianPackage string) func() error {
		return func() error {
			_, err := debian.Find(name, debianPackage, "")
			return err
		}
	}
	iptables := o.has(ViaIPTables) || o.has(ViaIPVS)
	for _, need := range []struct {
		needed bool
		check  func() error
	}{
		{o.Topology == TopologyDocker, func() error { _, err := findDocker(); return err }},
		{o.Guests, vm.CheckInstalled},
		{o.needsOpenVSwitch(), ovs.FindPrograms},
		{iptables || o.Policy == ViaIPTables, onPath("iptables", "iptables")},
		{iptables, onPath("ip6tables", "iptables")},
		{o.has(ViaNFTables) || o.Policy == ViaNFTables, onPath("nft", "nftables")},
	} {
		if need.needed {
			if err := need.check(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (o Options) has(via string) bool {
	isVia := func(h labfile.Host) bool { return h.Via == via }
	return o.Via == via || o.File != nil && slices.ContainsFunc(o.File.Hosts, isVia)
}

func (o Options) needsOpenVSwitch() bool {
	if o.Overlay == OverlayBridgedVeth || o.Overlay == OverlayBridgedInternal {
		return true
	}
	return slices.ContainsFunc(o.links(), func(link string) bool {
		mode, err := podlink.Lookup(link)
		return err == nil && mode.Traits().Needs == podlink.NeedsOpenVSwitch
	})
}
