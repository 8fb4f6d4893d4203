// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"mustang/internal/podlink"
)

// Datapaths of a lab.
const (
	DatapathKernel = "kernel"
	DatapathEBPF   = "ebpf"
)

// Ways in which a lab's service is made.
const (
	ViaNone     = "none"
	ViaIPTables = "iptables"
	ViaNFTables = "nftables"
	ViaEBPFTC   = "ebpf-tc"
	// ViaEBPFSocket translates at the socket, which an open connection then pays
	// nothing for.
	ViaEBPFSocket = "ebpf-socket"
)

// Options say what lab to build.
type Options struct {
	// Name tells labs apart: 1 to 40 lower-case letters, digits and dashes.
	Name string `json:"name"`
	// Topology is the name of one of [Topologies].
	Topology string `json:"topology"`
	// Link is the name of a link mode, see podlink.Modes; or, with two hosts,
	// [LinkHost] or [LinkHostBridge].
	Link string `json:"link"`
	// NetfilterCall makes a bridge pass its packets to the host's firewall rules.
	NetfilterCall bool `json:"netfilter_call"`
	// Datapath is [DatapathKernel] or [DatapathEBPF].
	Datapath string `json:"datapath"`
	// Via is how the service is made: none, iptables, nftables or ebpf-socket with
	// the kernel's datapath, ebpf-tc or ebpf-socket with that of eBPF. Empty means
	// none, or ebpf-tc.
	Via string `json:"via"`
	// Offload lets the program that links tap and tun go through carry batches of
	// segments instead of packets.
	Offload bool `json:"offload,omitempty"`
	// Overlay is how the segments of two hosts are joined: [OverlayNone] or one of
	// the ways of VXLAN. Empty means none.
	Overlay string `json:"overlay,omitempty"`
	// NAT hides pods behind the address of their host, which masquerades what leaves
	// it.
	NAT bool `json:"nat,omitempty"`
	// Guests makes the pods virtual machines.
	Guests bool `json:"guests,omitempty"`
	// NoProxy leaves published ports of containers to firewall rules alone, without
	// Docker's user-land proxy.
	NoProxy bool `json:"no_proxy,omitempty"`
	// Parent is what the uplink of topology pod-to-network sits on.
	Parent Parent `json:"parent,omitzero"`
	// WireRate is the rate of the wire between two hosts in bits per second, and
	// WireDelay its delay in each direction; 0 is what the kernel can do.
	WireRate  uint64        `json:"wire_rate,omitempty"`
	WireDelay time.Duration `json:"wire_delay,omitempty"`
	// Disk is a directory in which topology node makes one of its own, for what
	// plugins keep on disk. Empty means beside the lab's record.
	Disk string `json:"disk,omitempty"`
}

// Links of labs with two hosts and no pods.
const (
	// LinkHost has the hosts' addresses on the wire itself.
	LinkHost = "host"
	// LinkHostBridge has them on a bridge with the wire as its only port.
	LinkHostBridge = "host-bridge"
)

// Ways in which the pods' segments of two hosts are one.
const (
	OverlayNone = "none"
	// OverlayVXLAN is by the pods' own switch: a bridge with a VXLAN device of the
	// kernel as a port, an Open vSwitch with a VXLAN port of its own.
	OverlayVXLAN = "vxlan"
	// OverlayBridgedVeth and OverlayBridgedInternal are by an Open vSwitch with a
	// VXLAN port, below the bridge that the pods are on: joined by a veth pair, or by
	// an internal port of the Open vSwitch that is a port of the bridge too.
	OverlayBridgedVeth     = "vxlan-ovs-veth"
	OverlayBridgedInternal = "vxlan-ovs-internal"
)

var validName = regexp.MustCompile("^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$")

// withDefaults fills in what may be left out and returns an error that names
// the first field that makes no sense.
func (o Options) withDefaults() (Options, error) {
	if o.Datapath == "" {
		o.Datapath = DatapathKernel
	}
	if o.Via == "" {
		o.Via = ViaNone
		if o.Datapath == DatapathEBPF {
			o.Via = ViaEBPFTC
		}
	}
	ways := map[string][]string{
		DatapathKernel: {ViaNone, ViaIPTables, ViaNFTables, ViaEBPFSocket},
		DatapathEBPF:   {ViaEBPFTC, ViaEBPFSocket},
	}
	mode, err := podlink.Lookup(o.Link)
	if err != nil && !o.hostsOnly() {
		return o, &OptionError{Err: err}
	}
	switch allowed, known := ways[o.Datapath]; {
	case !validName.MatchString(o.Name):
		return o, optionErrorf("lab name %q: want 1 to 40 lower-case letters, digits and dashes", o.Name)
	case !known:
		return o, optionErrorf("datapath %q: want kernel or ebpf", o.Datapath)
	case !slices.Contains(allowed, o.Via):
		return o, optionErrorf("via %q: datapath %s takes %s", o.Via, o.Datapath, strings.Join(allowed, ", "))
	case o.NetfilterCall && o.Link != "bridge":
		return o, optionErrorf("netfilter call is a setting of link bridge, not of %s", o.Link)
	case o.Offload && (mode == nil || mode.Needs() != podlink.NeedsRelay):
		return o, optionErrorf("offload is a setting of links tap and tun, not of %s", o.Link)
	}
	if err := errors.Join(o.checkGuests(), o.checkDocker(), o.checkParent()); err != nil {
		return o, err
	}
	for _, topology := range Topologies() {
		if topology.Name == o.Topology {
			return o, topology.check(o)
		}
	}
	return o, optionErrorf("unknown topology %q (there are: %s)", o.Topology, strings.Join(topologyNames(), ", "))
}

// OptionError says that options make no sense, as opposed to a lab that cannot
// be built.
type OptionError struct{ Err error }

func (e *OptionError) Error() string { return e.Err.Error() }
func (e *OptionError) Unwrap() error { return e.Err }

func optionErrorf(format string, args ...any) error {
	return &OptionError{Err: fmt.Errorf(format, args...)}
}
