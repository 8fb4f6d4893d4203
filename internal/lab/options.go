// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"time"

	"mustang/internal/lab/labfile"
	"mustang/internal/podlink"
	"mustang/internal/qdisc"
)

// Names of topologies.
const (
	TopologyPodLinks  = "pod-links"
	TopologyTwoHosts  = "two-hosts"
	TopologyPodToHost = "pod-to-host"
	// TopologyPodToNetwork is the only one that is connected to a network of this machine.
	TopologyPodToNetwork = "pod-to-network"
	// TopologyDocker has Docker on host-a.
	TopologyDocker = "docker"
	// TopologyNode starts without pods. CNI plugins add them.
	TopologyNode = "node"
	// TopologyFile is the topology of labs of a file. [Topologies] does not list it.
	TopologyFile = "file"
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

// Ports of pod-a, and numbers of services and rules.
const (
	// ServicePort is the port of the service and of its backend, as of iperf3.
	ServicePort = 5201
	// PlainPort is a port of pod-a that no service has. A network policy of the lab allows pod-b this port.
	PlainPort = ServicePort - 1
	// DeniedPort is a port of pod-a that its network policy does not allow.
	DeniedPort = ServicePort + 2
	// MaxPolicyRules is the greatest number of rules of a lab's network policy.
	MaxPolicyRules = 20_000
	// MaxServices is the greatest number of services of a lab.
	MaxServices = 100_000
	// MaxPorts is the greatest number of ports that the service of pod-a has in addition to ServicePort.
	MaxPorts = 8
	// OtherBackends is the number of backends of each of a lab's other services.
	OtherBackends = 2
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
	// Services is the number of IPv4 services in topologies pod-links and two-hosts, at most [MaxServices]. 0 means only
	// its own; in two-hosts with eBPF per packet, none.
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
	BigTCP  bool `json:"big_tcp,omitempty"` // lets TCP packets of up to 256 KiB cross the pods' links
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

// UplinkDevice is a device of this machine below the uplink of topology pod-to-network, with addresses of its network.
// Several labs can share it; none changes it.
type UplinkDevice struct {
	Name string `json:"device"` // its name in the network namespace of the process that builds the lab
	// Host and Pod are free IPv4 addresses of its network with its prefix length, for
	// host-b and for pod-b (which has another one with NAT).
	Host netip.Prefix `json:"host"`
	Pod  netip.Prefix `json:"pod"`
}

// Check returns an [*OptionError] for the first invalid field. It does not look at the devices of the machine.
func (u UplinkDevice) Check() error {
	if u.Name == "" {
		return optionErrorf("topology pod-to-network: name the machine's device by --uplink")
	}
	for _, addr := range []netip.Prefix{u.Host, u.Pod} {
		switch {
		case !addr.IsValid() || !addr.Addr().Is4():
			return optionErrorf("uplink address %v: want an IPv4 address with its network's prefix length, such as 10.0.0.50/24",
				addr)
		case !addr.Addr().IsGlobalUnicast() || addr.Bits() == 0 || addr.Bits() > 30 ||
			addr.Addr() == addr.Masked().Addr() || labfile.IsBroadcast(addr, addr.Addr()):
			return optionErrorf("uplink address %v: not a host address of a network", addr)
		case addr.Overlaps(networkPods[0]):
			return optionErrorf("uplink address %v: labs reserve %v", addr, networkPods[0])
		}
	}
	if u.Host == u.Pod || u.Host.Masked() != u.Pod.Masked() {
		return optionErrorf("uplink addresses %v and %v: want two addresses of one network", u.Host, u.Pod)
	}
	return nil
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

func (o Options) hostsOnly() bool { return o.Link == LinkHost || o.Link == LinkHostBridge }

// hasServices reports whether the lab has services. Topology two-hosts with eBPF per packet has none unless a number is
// set: its usual labs measure the overlay alone.
func (o Options) hasServices() bool {
	return o.Services > 0 || o.Via != ViaNone && o.Via != ViaEBPFTC && o.Topology == TopologyTwoHosts
}

func (o Options) hasOverlay() bool { return o.Overlay != "" && o.Overlay != OverlayNone }

func (o Options) podsOnWire() bool {
	return !o.hostsOnly() && !o.traits().Routed && !o.NAT && !o.hasOverlay()
}

func (o Options) isGuest(place string) bool { return o.Guests && (place == PodA || place == PodB) }

func (o Options) links() (links []string) {
	switch {
	case o.hostsOnly():
		return nil
	case o.File == nil:
		return []string{o.Link}
	}
	for _, h := range o.File.Hosts {
		for _, n := range h.Networks {
			if !slices.Contains(links, n.Link) {
				links = append(links, n.Link)
			}
		}
	}
	return links
}

func (o Options) ports() []uint16 {
	return slices.DeleteFunc(slices.Clone(o.Ports[:]), func(port uint16) bool { return port == 0 })
}

func (o Options) traits() podlink.Traits {
	if mode, err := podlink.Lookup(o.Link); err == nil {
		return mode.Traits()
	}
	return podlink.Traits{} // of hosts without pods
}

// CheckWire returns an [*OptionError] if a rate in bits per second or a delay is out of range; 0 means no limit.
func CheckWire(rate uint64, delay time.Duration) error {
	if err := qdisc.CheckEmulation(rate, delay); err != nil {
		return optionErrorf("wire %w", err)
	}
	return nil
}

func (o Options) has(via string) bool {
	isVia := func(h labfile.Host) bool { return h.Via == via }
	return o.Via == via || o.File != nil && slices.ContainsFunc(o.File.Hosts, isVia)
}

func convert[T, U any](list []T, to func(T) U) (out []U) {
	for _, item := range list {
		out = append(out, to(item))
	}
	return out
}
