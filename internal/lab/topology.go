// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"mustang/internal/distro"
	"mustang/internal/ovs"
	"mustang/internal/podlink"
	"mustang/internal/suggest"
	"mustang/internal/vm"
)

// Topology is a kind of network that a lab can have.
type Topology struct {
	Name string // its name on the command line
	Doc  string // describes it in one line
	Link string // its usual link

	places []string // that can run commands
	build  func(context.Context, *Lab) error
}

// Topologies returns all topologies in the order of listings.
func Topologies() []Topology {
	return []Topology{
		{TopologyPodLinks, "one host with two pods, pod-a behind a service", "veth",
			[]string{Host, PodA, PodB}, buildPodLinks},
		{TopologyTwoHosts, "two hosts on a wire, pod-a on host-a and pod-b on host-b", "veth",
			[]string{HostA, HostB, PodA, PodB}, buildTwoHosts},
		{TopologyPodToHost, "two hosts on a wire, pod-b on host-b; host-a is a plain machine", "veth",
			[]string{HostA, HostB, PodB}, buildTwoHosts},
		{TopologyPodToNetwork, "pod-b on host-b, whose uplink is a macvlan of a device of this machine", "veth",
			[]string{HostB, PodB}, buildPodToNetwork},
		{TopologyDocker, "two hosts on a wire, host-a with Docker and three containers", dockerLink,
			[]string{HostA, HostB, ContainerA, ContainerB, ContainerHost}, buildDocker},
		{TopologyNode, "one host with an uplink and no pods, for CNI plugins", LinkHost,
			[]string{Host, Outside}, buildNode},
	}
}

func (o Options) topology() Topology {
	if o.File != nil {
		return Topology{Name: TopologyFile, places: o.File.Places(), build: buildFile}
	}
	for _, topology := range Topologies() {
		if topology.Name == o.Topology {
			return topology
		}
	}
	return Topology{}
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
		{"via " + o.Via, o.Via != ViaNone && o.Via != ViaEBPFTC, []string{one, two}, nil},
		{fmt.Sprintf("services %d", o.Services), o.Services != 0, []string{one, two}, nil},
		{"services of topology " + o.Topology, o.Topology == two && o.hasServices(), nil, takesPodDatapath},
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
		{o.hasServices() && o.NAT, optionErrorf("via %s: not with nat", o.Via)},
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

// CheckInstalled returns a [*distro.MissingError] if a program that the lab needs is not installed. It needs no root.
func (o Options) CheckInstalled() error {
	onPath := func(name, debianPackage string) func() error {
		return func() error {
			_, err := distro.Find(name, debianPackage, "")
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

func (o Options) needsOpenVSwitch() bool {
	if o.Overlay == OverlayBridgedVeth || o.Overlay == OverlayBridgedInternal {
		return true
	}
	return slices.ContainsFunc(o.links(), func(link string) bool {
		mode, err := podlink.Lookup(link)
		return err == nil && mode.Traits().Needs == podlink.NeedsOpenVSwitch
	})
}

// Addresses returns the addresses of a place, IPv4 first; none if the lab lacks the place.
func Addresses(o Options, place string) []netip.Addr {
	number, known := map[string]int{Host: 1, HostA: 1, ContainerHost: 1, HostB: 2, PodA: 10, PodB: 11}[place]
	isPod := number >= 10
	switch {
	case o.File != nil:
		return o.File.Addresses(place)
	case !slices.Contains(o.topology().places, place) || o.Topology == TopologyNode || isPod && o.hostsOnly():
		return nil
	case !known:
		return []netip.Addr{containerAddresses[place]}
	case o.Topology == TopologyPodToNetwork && !isPod:
		return []netip.Addr{o.Uplink.Host.Addr()}
	case o.Topology == TopologyPodToNetwork && !o.NAT:
		return []netip.Addr{o.Uplink.Pod.Addr()}
	case o.Topology == TopologyPodToNetwork:
		return numbered(networkPods, number)
	case o.Topology == TopologyPodLinks, isPod && o.hasOverlay() && !o.traits().Routed:
		return numbered(Ranges[HostA], number)
	case !isPod, o.podsOnWire():
		return numbered(Underlay, number)
	case place == PodA:
		return numbered(Ranges[HostA], number)
	}
	return numbered(Ranges[HostB], number)
}
