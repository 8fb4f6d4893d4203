// SPDX-License-Identifier: Apache-2.0

// Package podlink attaches pods to a host: one link mode for each way that Linux has.
//
// In most modes a link has two ends (linkType: veth, netkit, TUN and TAP devices). The host routes through its end
// (routed) or makes it a port of a bridge (bridged, and ovsPorts for Open vSwitch). In others the pod's device sits
// on an uplink (subinterface: macvlan and ipvlan) or is itself a port of a switch (ovsInternal).
//
// Devices are created in the namespace where they belong and never moved, so nothing appears temporarily on the host
// or in the root namespace. Exception: in mode ovs-internal, devices pass through the host. Addresses skip duplicate
// address detection, and Create returns when the devices can send and receive: a pod can connect at once, with IPv6
// too. In modes with NeedsRelay that is when the relay has opened the devices; addresses and routes are there before.
package podlink

import (
	"errors"
	"fmt"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/ovs"
	"mustang/internal/suggest"
)

// Mode is a way to attach a pod to a host. All modes are in this package.
type Mode interface {
	// Name is the mode's name for users, like "veth".
	Name() string
	// Traits returns the facts about the mode that other packages decide by.
	Traits() Traits
	// Probe tries the mode in a temporary namespace. It returns nil, or an *UnsupportedError if the kernel lacks the mode.
	Probe() error
	// Setup creates the part of a network on its host that all pods share. Repeated, it repairs that part, changes
	// nothing else, and is quick enough to precede each Create. Several may run at once, in several processes, except
	// in modes with NeedsOpenVSwitch.
	Setup(network Network) error
	// Teardown removes from the host the result of Setup, but leaves forwarding enabled, since others may need it. For a
	// network that is not set up it returns nil. Delete the pods before.
	Teardown(network Network) error
	// Create attaches a pod to a network that is set up. If it fails, it has undone its changes. The error matches
	// fs.ErrExist if the name of a device is taken.
	Create(network Network, pod Pod) (Attachment, error)
	// Check returns nil, or a *DeviationError that lists the deviations from the result of Setup and Create. It ignores
	// the netfilter call and the links of bridges to other hosts.
	Check(network Network, pod Pod) error
	// Delete removes the result of Create. It returns nil if that is gone, or the pod's namespace (pod.Namespace is then
	// nil). pod.Addresses name the host's routes to the pod.
	Delete(network Network, pod Pod) error

	sealed()
}

// linkModes are all link modes, in the order of lists for users.
//
// In the ipvlan modes all devices on the uplink have its MAC address, and the kernel distinguishes packets by IP
// address. In layer 2, devices are neighbours as on an Ethernet. In layer 3 they lack neighbours, and packets to other
// addresses leave through the uplink. For IPv4 only the host's routes through the uplink count then, so pods of other
// link modes on the host are unreachable. L3S is like L3, but packets from the uplink pass the host's netfilter hooks.
func linkModes() []linkMode {
	return []linkMode{
		newRouted("veth", veth(), false, 1), newBridged("bridge", veth(), 3),
		newMacvlan(), newIPVLAN(netlink.IPVLAN_MODE_L2), newIPVLAN(netlink.IPVLAN_MODE_L3),
		newIPVLAN(netlink.IPVLAN_MODE_L3S),
		newRouted("netkit", netkitMode(netlink.NETKIT_MODE_L3).linkType(), true, 2), // the kernel's default
		newRouted("netkit-l2", netkitMode(netlink.NETKIT_MODE_L2).linkType(), false, 0),
		newOVSPorts("ovs-veth", veth()), newOVSInternal(),
		newBridged("tap", tapLayer.linkType(), 0), newRouted("tun", tunLayer.linkType(), true, 0),
		newOVSPorts("ovs-tap", tapLayer.linkType()), // TAP devices of VMs, without a relay
	}
}

// Modes returns the link modes in the order of lists for users, without [GuestModes].
func Modes() []Mode { return modesWith(false) }

// GuestModes returns the link modes with Traits.GuestsOnly.
func GuestModes() []Mode { return modesWith(true) }

func modesWith(guestsOnly bool) (out []Mode) {
	for _, l := range linkModes() {
		if l.traits.GuestsOnly == guestsOnly {
			out = append(out, l)
		}
	}
	return out
}

// Lookup returns the mode of that name, or an error with the names of all modes.
func Lookup(name string) (Mode, error) {
	var known []string
	for _, l := range linkModes() {
		if l.name == name {
			return l, nil
		}
		if !l.traits.GuestsOnly {
			known = append(known, l.name)
		}
	}
	return nil, fmt.Errorf("unknown link mode %q (known: %s)%s", name, strings.Join(known, ", "),
		suggest.Text(name, known))
}

// UnsupportedError reports a feature that a link mode or a lab needs and the running kernel lacks. It matches
// errors.ErrUnsupported.
type UnsupportedError struct {
	Mode    string // name of the link mode; empty for a lab
	Feature string // the missing feature, like "macvlan devices"
	Module  string // its kernel module
	Since   string // the first Linux version with it
	Kernel  string // the running release, like "6.12.9-amd64"
	Err     error  // the kernel's answer; or nil
}

// Here returns the error about the running kernel.
func (e UnsupportedError) Here() *UnsupportedError {
	var name unix.Utsname
	_ = unix.Uname(&name) // cannot fail with a valid buffer
	e.Kernel = unix.ByteSliceToString(name.Release[:])
	return &e
}

func (e *UnsupportedError) Error() string {
	text := fmt.Sprintf("kernel %s lacks %s (module %s, since Linux %s)", e.Kernel, e.Feature, e.Module, e.Since)
	if e.Mode == "" {
		return text
	}
	return "link mode " + e.Mode + ": " + text
}

func (e *UnsupportedError) Unwrap() error { return e.Err }

// Is makes the error match errors.ErrUnsupported.
func (e *UnsupportedError) Is(target error) bool { return target == errors.ErrUnsupported }

// DeviationError reports deviations of a pod's link from its configuration.
type DeviationError struct {
	Mode, Pod  string   // names of the link mode and of the pod's namespace
	Deviations []string // in the order of the checks
}

func (e *DeviationError) Error() string {
	return fmt.Sprintf("check %s link of pod %q: %s", e.Mode, e.Pod, strings.Join(e.Deviations, "; "))
}

// requirement is a kind of device that a mode needs.
type requirement struct {
	feature, module, since string
	try                    func(h nsHandle) error // creates such a device in an empty namespace
}

// enotsupp is the answer of a kernel without ipvlan mode l3s. Only the kernel's headers name it.
const enotsupp = unix.Errno(524)

func probe(mode string, requirements ...requirement) (err error) {
	defer func() {
		if unsupported := (*UnsupportedError)(nil); !errors.As(err, &unsupported) {
			wrap(&err, "probe link mode "+mode)
		}
	}()
	ns, err := netns.New()
	if err != nil {
		return err
	}
	defer ns.Close()
	h, err := openHandle(ns)
	if err != nil {
		return err
	}
	defer h.Close()
	for _, r := range requirements {
		err := r.try(h)
		if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, enotsupp) {
			return UnsupportedError{Mode: mode, Feature: r.feature, Module: r.module, Since: r.since, Err: err}.Here()
		}
		if err != nil {
			return fmt.Errorf("create %s: %w", r.feature, err)
		}
	}
	return nil
}

const probeName = "probe0" // the device that vethPair.requirement tries, on which others build

// Seen describes the device of a pod: its kind, the kind of its master, whether it is an ipvlan whose packets the host
// routes, and whether it has a MAC address.
type Seen struct {
	Kind, Master     string
	Layer3, Ethernet bool
}

// ModeOf returns the name of the link mode that a device belongs to. Modes ipvlan-l3 and -l3s look alike, and so do
// both netkit modes. It returns the device's kind if no mode creates such a device.
func ModeOf(s Seen) string {
	switch {
	case s.Kind == "veth" && s.Master == "bridge":
		return "bridge"
	case s.Kind == "veth" && s.Master == "openvswitch":
		return "ovs-veth"
	case s.Kind == "openvswitch":
		return "ovs-internal"
	case s.Kind == "ipvlan" && s.Layer3:
		return "ipvlan-l3"
	case s.Kind == "ipvlan":
		return "ipvlan-l2"
	case s.Kind == "tun" && s.Ethernet:
		return "tap"
	}
	return s.Kind
}

// Traits are the facts about a link mode that other packages decide by. None of them compares the names of modes.
type Traits struct {
	Needs Need // the requirement in addition to a host and a pod
	// HostSide is true if each pod has a device on the host, where programs attach and which all of the pod's packets
	// cross, unless a program redirects them. Otherwise programs attach to the pod's own device.
	HostSide bool
	// Routed is true if the host routes all packets of a pod, also packets to pods of the same network. Otherwise pods
	// of one network reach each other directly.
	Routed bool
	// Switched is true if the pods and the host are neighbours on one network, where a router other than the host can
	// be the gateway (Network.Routers).
	Switched bool
	// Layer3 is true if the pods' devices lack neighbours: they neither send nor answer ARP and neighbour discovery.
	// Relays of such devices carry IP packets (TUN), relays of others Ethernet frames (TAP).
	Layer3 bool
	// Bridge is true if the pods' links are ports of Network.Bridge: a bridge of Open vSwitch in modes with
	// NeedsOpenVSwitch, a Linux bridge in others. Such networks can have a VXLAN tunnel and an uplink port.
	Bridge        bool
	NetfilterCall bool // true if Network.NetfilterCall has an effect
	// HostDevice is the host's own device among the pods, with the gateways' addresses: the bridge (DefaultBridge), or
	// a device on the uplink. It is empty in Routed modes, whose gateways' addresses are on the loopback device.
	// Packets between two pods do not cross it.
	HostDevice string
	// ReceiveOnUplink is true if the host receives packets of pods on the uplink itself, and only sends on HostDevice.
	ReceiveOnUplink bool
	// UplinkSibling is true if the kernel attaches pods' devices on an uplink of the same kind to the uplink's own
	// parent: their packets do not cross the uplink.
	UplinkSibling bool
	// Delivery is the way in which the eBPF programs deliver packets to another pod of the host. See [Traits.DeliveryOn].
	Delivery Delivery
	BigTCP   bool // true if Network.BigTCP has an effect: no program in user space reads the packets
	// DHCP is true if a pod can request addresses from a DHCP server on its network: its device has its own MAC address
	// and is usable before it has IP addresses.
	DHCP bool
	// Guests is true if a pod can lack a namespace and bring its own end of the link, as VMs do. GuestsOnly is true if
	// every pod must.
	Guests, GuestsOnly bool
	// AutoRank is the mode's rank in an automatic choice, 1 first; 0 excludes it. Ranked modes need only the kernel, and
	// the first has the least work per packet (docs/performance.md, table of instructions, with eBPF).
	AutoRank int
	// ResultLink is the name of the mode in result files. Modes that differ in the switch, and not in the pod's link,
	// share one.
	ResultLink string
}

// Need is a requirement of a link mode.
type Need int

// Requirements of link modes, in addition to a host and a pod.
const (
	// NeedsNothing is for modes without further requirements.
	NeedsNothing Need = iota
	// NeedsUplink is for modes whose devices sit on Network.Uplink.
	NeedsUplink
	// NeedsOpenVSwitch is for modes that attach pods to a running Open vSwitch, with its database at Network.OVSDB.
	NeedsOpenVSwitch
	// NeedsRelay is for modes in which a program relays packets between the device on the host and the one in the pod.
	// It must open both (TUNSETIFF, each in its namespace) after Create; until then they lack a carrier.
	NeedsRelay
)

// Delivery is a way in which an eBPF program on a pod's link delivers a packet to another pod of the same host.
type Delivery int

// Ways of delivery.
const (
	// DeliverByMAC lets the packet continue in the pods' network with the MAC address of the other pod.
	DeliverByMAC Delivery = iota
	// DeliverToPeer redirects it from the host's device of one pod into the other pod (bpf_redirect_peer). The sender's
	// device counts it as received; no device of the host counts it as sent.
	DeliverToPeer
	// DeliverToHostDevice redirects it from the host's device of one pod to the other pod's (bpf_redirect).
	DeliverToHostDevice
	// DeliverFromPeer does the same before the host's device of the sender receives it (netkit): only the other pod's
	// device counts it, as sent.
	DeliverFromPeer
)

// DeliveryOn returns the way of delivery on a datapath of Open vSwitch (ovs.Kernel or ovs.UserSpace), or without one if
// datapath is empty. A switch in user space receives packets before programs on the host's devices could redirect them,
// so programs attach to the pods' own devices there.
func (t Traits) DeliveryOn(datapath string) Delivery {
	if datapath == ovs.UserSpace {
		return DeliverByMAC
	}
	return t.Delivery
}
