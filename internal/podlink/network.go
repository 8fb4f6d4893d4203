// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"net"
	"net/netip"

	"mustang/internal/nl"
)

const (
	// DefaultBridge is the name of the bridge if Network.Bridge is empty.
	DefaultBridge = "mst0"
	// HostSlave is the host's own device in mode macvlan, where pods share an
	// uplink, since a host can't reach them through the uplink itself.
	HostSlave = "mst-host"
	// IPVLANHostSlave is the same in the ipvlan modes. A host can have both, on
	// different uplinks.
	IPVLANHostSlave = "mst-ipvlan"
	// DefaultMTU is the MTU of pods in bytes if Network.MTU is 0.
	DefaultMTU = 1500
)

// Network is what the pods of one link mode on one host have in common.
type Network struct {
	// Host is the namespace that forwards the pods' packets. Setup switches
	// forwarding on in it.
	Host *nl.Namespace
	// Bridge is the name of the bridge that the modes bridge and tap make, and those
	// of Open vSwitch in it.
	Bridge string
	// Uplink is the name of a device in Host that is up, for modes whose devices
	// sit on one. It is not changed. On one that is a macvlan itself, the devices of
	// mode macvlan are beside it, on its parent.
	Uplink string
	// OVSDB is the unix socket of the ovsdb-server of the Open vSwitch that modes
	// with NeedsOpenVSwitch plug pods into. Its ovs-vswitchd runs in Host.
	OVSDB string
	// Gateways are the host's own addresses towards the pods, with the prefix that
	// the pods are in, like 192.168.10.1/24. At most one per family. In the modes that
	// route (veth, netkit, netkit-l2, tun) they may be left out, and where the bridge
	// has a Trunk or VXLAN, but no pods.
	Gateways []netip.Prefix
	// Routers are next hops of the pods' default routes where the host is not: others
	// on the pods' network, in the modes that are Switched, at most one per family, and
	// only of families with a gateway. Gateways are then no more than the host's
	// addresses there. The host must not have a router's.
	Routers []netip.Addr
	// Trunk is the name of a device in Host that Setup makes a port of the bridge
	// besides the pods', and sets up: an uplink, say. It is to have no addresses. In
	// modes with a bridge; or empty.
	Trunk string
	// VXLAN joins the bridge to that of another host, in modes with a bridge. The
	// zero value joins nothing.
	VXLAN VXLAN
	// NetfilterCall lets a bridge pass bridged packets through the host's
	// iptables and nftables rules for routed ones (br_netfilter). If it is false,
	// Setup switches that off for all bridges in Host.
	NetfilterCall bool
	// MTU of the pods' devices in bytes.
	MTU int
}

func (n Network) bridge() string {
	if n.Bridge == "" {
		return DefaultBridge
	}
	return n.Bridge
}

func (n Network) mtu() int {
	if n.MTU == 0 {
		return DefaultMTU
	}
	return n.MTU
}

// gateway returns the gateway of addr's family.
func (n Network) gateway(addr netip.Addr) (netip.Prefix, bool) {
	for _, gateway := range n.Gateways {
		if gateway.Addr().Is4() == addr.Is4() {
			return gateway, true
		}
	}
	return netip.Prefix{}, false
}

// Pod is what is plugged in.
type Pod struct {
	// Namespace is the pod's. It is nil for a pod that brings its own end of the link,
	// such as a VM, in the modes that can have such: tap, and [GuestModes].
	Namespace *nl.Namespace
	// IfName is the name of the pod's device, like "eth0". At most 15 bytes.
	IfName string
	// HostIfName is the name of the device on the host in modes with a host side,
	// and of the switch's port in mode ovs-internal; ignored in others. At most 15 bytes.
	HostIfName string
	// Addresses are the pod's, of either family or both.
	Addresses []netip.Addr
	// MAC is the address that the pod's device gets, 6 bytes, of one host. If it is
	// nil, Create chooses one, and Check accepts any. The ipvlan modes and those in
	// layer 3 can't choose, and neither can the host for a pod without a namespace: it
	// is an error there.
	MAC net.HardwareAddr
	// Routes are those that the pod is to have. A default route among them takes the
	// place of the one by the gateway that the pod has otherwise.
	Routes []Route
	// Secondary is set where the pod has its default routes by another device, or none.
	// It gets routes to the network's own prefixes by this one. Default routes without a
	// priority are left out of Routes.
	Secondary bool
	// Plugged is set where [Plugger] has made the pod's device. A Create that fails leaves
	// it, for another or for Delete.
	Plugged bool
}

// name is what errors call the pod: its namespace's name, or that of the host's
// end of its link.
func (p Pod) name() string {
	if p.Namespace == nil {
		return p.HostIfName
	}
	return p.Namespace.Name()
}

// Attachment is how a pod was plugged in. What concerns the host's device is
// empty in modes without a host side. IfName is Pod.IfName, except in mode
// ovs-internal on the kernel's datapath, where that is only another name of the
// device. For a pod without a namespace, Prefixes, Routes and MTU are what it is
// to give its own end.
type Attachment struct {
	IfName, HostIfName   string
	IfIndex, HostIfIndex int
	MAC, HostMAC         net.HardwareAddr
	Addresses            []netip.Addr
	// Prefixes are the pod's addresses in the order of Addresses, each with the prefix
	// length that the pod's device has it with: that of the gateway where pods find
	// each other directly, all bits (/32, /128) where the host routes between them.
	Prefixes []netip.Prefix
	// Routes are those that the pod's device has beyond the ones to its prefixes: a
	// default route for each family of the pod's addresses, IPv4's and IPv6's in the
	// order of Addresses, and those of Pod.Routes.
	Routes []Route
	// MTU of the pod's device in bytes.
	MTU int
	// NodeMAC is the host's MAC on the pod's link: that of the pod's next hop, where no
	// other is the router.
	NodeMAC net.HardwareAddr
}
