// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"mustang/internal/datapath/objects"
	"mustang/internal/netns"
	"mustang/internal/policy"
	"mustang/internal/service"
)

// EndpointSpec names the device of a pod.
type EndpointSpec struct {
	Owner service.Owner // the client that the endpoint is made for
	// Namespace is the pod's network namespace. It is nil for a pod without one on this machine, like a VM: HostIfName,
	// Addresses and MAC then describe the pod.
	Namespace *netns.Namespace
	IfName    string // the device's name in the pod
	// Host is the network namespace of the host's side of the link; nil is the namespace of the calling thread.
	Host *netns.Namespace
	// HostIfName is the device in Host that gets the programs, for links whose two ends are not peers in the kernel: tap
	// and tun. Empty otherwise.
	HostIfName string
	// Segment is a device in Host, such as a bridge of Open vSwitch, that joins pods. The pods reach each other by MAC
	// address, and each gets the programs on its own device. Empty if the kind of the device shows all this.
	Segment string
	// Shaped delivers packets into the pod through the queue of the host's device (bpf_redirect), where a qdisc limits
	// their rate. It is an error if the link lacks a host's side.
	Shaped bool
	// Addresses are the pod's. If empty: its device's addresses that are not Allowed, which root in the pod chooses.
	Addresses []netip.Addr
	// Pod is the pod's namespace, name, labels and named ports, for network policies. If it is nil, an endpoint keeps
	// its values, and a new one is a pod of namespace default without labels.
	Pod *policy.Pod
	// Given, unless it is nil, names the parts of an existing endpoint that the spec changes. The endpoint keeps all
	// other parts, its MAC address included.
	Given *Given
	MAC   net.HardwareAddr // the MAC address of a pod without a Namespace, and ignored for others
	// Allowed are prefixes that the pod may use as if they were its addresses: a router's addresses, or addresses that
	// move between pods. At most 16.
	Allowed   []netip.Prefix
	Unguarded bool // whether the pod may send from and announce any address
	DHCP      bool // whether the pod may request addresses from a DHCP server
}

// Given lists the parts of an EndpointSpec that the caller has named.
type Given struct {
	Addresses, Allowed, Guard bool
	Namespace, Name, Labels   bool // of the pod
}

// ErrNoAddress reports that no other pod could send to a device.
var ErrNoAddress = errors.New("no address that other pods could send to")

// String names the device for messages.
func (a EndpointSpec) String() string {
	if a.Namespace == nil {
		return fmt.Sprintf("behind %q", a.HostIfName)
	}
	return fmt.Sprintf("%q in network namespace %q", a.IfName, a.Namespace.Name())
}

// Check returns an error if the device cannot be an endpoint: the device, its address or its peer is missing, or its
// kind is not supported. It changes nothing.
func (a EndpointSpec) Check() error {
	d, err := findTarget(a)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.requireAddress(a)
}

func (a EndpointSpec) checkAllowed() error {
	if len(a.Allowed) > maxPrefixes {
		return fmt.Errorf("%d allowed addresses: at most %d", len(a.Allowed), maxPrefixes)
	}
	for _, p := range a.Allowed {
		if err := CheckAllowed(p); err != nil {
			return err
		}
	}
	return nil
}

// CheckAllowed returns an error unless a pod can be allowed a prefix: one without host bits, of unicast addresses.
func CheckAllowed(p netip.Prefix) error {
	addr := p.Addr()
	switch {
	case !p.IsValid() || addr.Is4In6() || addr.Zone() != "":
		return fmt.Errorf("allowed address %s: want a prefix", p)
	case p != p.Masked():
		return fmt.Errorf("allowed address %s: has host bits, want %s", p, p.Masked())
	case p.Bits() > 0 && (addr.IsMulticast() || addr.IsLoopback() || addr.IsUnspecified()):
		return fmt.Errorf("allowed address %s: want addresses of hosts", p)
	}
	return nil
}

// merge returns the pod for policies: the parts of want that g names, and the other parts of have.
func (g Given) merge(have, want policy.Pod) *policy.Pod {
	if !g.Namespace && have.Namespace != "" {
		want.Namespace = have.Namespace
	}
	if !g.Name {
		want.Name = have.Name
	}
	if !g.Labels {
		want.Labels = have.Labels
	}
	want.Ports = have.Ports
	return &want
}

// apart returns the pod's own addresses: all that are not in an allowed network. An address within a larger allowed
// network may be a router's: it is the pod's own only if no address of its family is outside allowed networks.
func apart(all []netip.Addr, allowed []netip.Prefix) []netip.Addr {
	var own, within []netip.Addr
	for _, a := range all {
		switch {
		case !slices.ContainsFunc(allowed, func(p netip.Prefix) bool { return p.Contains(a) }):
			own = append(own, a)
		case !slices.Contains(allowed, netip.PrefixFrom(a, a.BitLen())):
			within = append(within, a)
		}
	}
	return append(own, slices.DeleteFunc(within, func(a netip.Addr) bool {
		return slices.ContainsFunc(own, func(o netip.Addr) bool { return o.Is4() == a.Is4() })
	})...)
}

func reachable(all []netip.Addr) (addresses []netip.Addr) {
	for _, a := range all {
		if a = a.Unmap(); a.IsGlobalUnicast() {
			addresses = append(addresses, a)
		}
	}
	return addresses
}

// Traffic counts packets in one direction: of a device since it was made, of a service since it was created.
type Traffic = objects.Traffic

// Endpoint is one address of a pod.
type Endpoint struct {
	ID    uint32 // shared by all addresses of one device
	IP    netip.Addr
	Owner service.Owner
	// Host is true if the programs sit on the host's side of the pod's link; IfIndex is then the index of that device.
	// Otherwise they sit on the pod's own device, and IfIndex is its index in the pod's network namespace.
	Host    bool
	IfIndex int
	PodMAC  net.HardwareAddr // the MAC address of the device in the pod; zero for devices without one, like TUN
	// NodeMAC is the node's MAC address on the pod's link: the address of the host's side. For a macvlan or ipvlan: the
	// address of the host's own device on the same parent, or else of the parent. For a segment: the address of its
	// device. Zero if none.
	NodeMAC net.HardwareAddr

	// Kind is the kind of the device, such as "veth"; Master is the kind of its master, and Device its name. Layer3 is
	// true for an ipvlan whose packets the host routes, Ethernet for a device with a MAC address. Netns is the name or
	// path of the pod's network namespace. Guarded is true if the source guard is on. Describe fills them in.
	Kind, Master, Device, Netns string
	Layer3, Ethernet, Guarded   bool
	// Allowed are sources that the pod may use in addition to its addresses. LinkLocal is its link-local address,
	// invalid if unknown. Describe fills them in, with Guarded.
	Allowed   []netip.Prefix
	LinkLocal netip.Addr
	// Sent is the pod's traffic out of the device, and Received its traffic in.
	Sent, Received Traffic

	flags   uint32 // how packets enter the pod from the host's side
	segment uint32 // pods without a host side reach each other by MAC address if theirs are equal; 0 is none
	netns   uint64 // cookie of the pod's network namespace; 0 if it has none
	sets    policy.Sets
}

// Namespace returns the cookie of the pod's network namespace; 0 without one.
func (e Endpoint) Namespace() uint64 { return e.netns }

// Segment returns the index of the host's device that pods without a host's side share, as a macvlan's or ipvlan's
// parent is; 0 if there is none.
func (e Endpoint) Segment() int { return int(e.segment) }

func sortEndpoints(all []Endpoint) {
	slices.SortFunc(all, func(a, b Endpoint) int { return cmp.Or(cmp.Compare(a.ID, b.ID), a.IP.Compare(b.IP)) })
}
