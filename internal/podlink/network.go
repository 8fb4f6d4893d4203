// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/ovs"
	"mustang/internal/rtnl"
)

const (
	// DefaultBridge is the name of the bridge if Network.Bridge is empty.
	DefaultBridge = "mst0"
	// MacvlanHostDevice is the host's own device in mode macvlan, since a host can't
	// reach the devices on an uplink through the uplink itself.
	MacvlanHostDevice = "mst-host"
	// IPVLANHostDevice is the host's own device in the ipvlan modes. A host can have both, on different uplinks.
	IPVLANHostDevice = "mst-ipvlan"
	// DefaultMTU is the MTU of pods in bytes if Network.MTU is 0.
	DefaultMTU = 1500
)

// minMTU and minMTU6 are the least of IPv4 (RFC 791) and IPv6 (RFC 8200), maxMTU the most of the IPv4 length field.
const (
	minMTU  = 68
	minMTU6 = 1280
	maxMTU  = 65535
)

// Network is the part that the pods of one link mode on one host have in common.
type Network struct {
	// Host is the namespace that forwards the pods' packets. Setup enables forwarding
	// in it, in the families of Gateways, or in both if there are none.
	Host   *netns.Namespace
	Bridge string // the name of the bridge in modes with Traits.Bridge
	// Uplink is the name of a device in Host that is up, in modes with NeedsUplink. It is not changed. On an uplink
	// that is a macvlan, the devices of mode macvlan are its siblings, on its parent.
	Uplink string
	// OVSDB is the unix socket of the ovsdb-server in modes with NeedsOpenVSwitch. Its ovs-vswitchd runs in Host.
	OVSDB string
	// Gateways are the host's own addresses towards the pods with the pods' prefix, like 192.168.10.1/24, at most one
	// per family. Pods with single addresses have such a gateway as a neighbour (192.168.10.1/32). Gateways are
	// optional in modes with Traits.Routed, and for a bridge without pods that has an UplinkPort or VXLAN.
	Gateways []netip.Prefix
	// Routers are the next hops of the pods' default routes, if these are other machines on the pods' network. They need
	// a mode with Traits.Switched; at most one per family, of families with a gateway. Gateways are then only the host's
	// addresses in that network. The host must not have a router's address.
	Routers []netip.Addr
	// UplinkPort is the name of a device in Host, without addresses, that Setup makes a
	// port of the bridge and sets up. It is optional, in modes with Traits.Bridge.
	UplinkPort string
	// VXLAN joins the bridge to the bridge of another host, in modes with Traits.Bridge. The zero value joins none.
	VXLAN VXLAN
	// NetfilterCall passes bridged packets through the host's iptables and nftables rules for routed ones
	// (br_netfilter). If it is false, the host's sysctls decide: DisableNetfilterCall.
	NetfilterCall bool
	MTU           int // of the pods' devices in bytes
	// BigTCP lets IPv4 TCP packets of up to rtnl.BigTCPBytes cross the devices that Setup and Create create, if the kernel
	// and the device support them. The kernel cuts packets to the MTU at devices with smaller limits, such as the uplink,
	// or a shared bridge that exists without BigTCP. It has no effect in modes without Traits.BigTCP. Check ignores it.
	BigTCP bool
	// BigTCP6 does that for IPv6 packets too, where [rtnl.TakesBigIPv6]. It has no effect without BigTCP.
	BigTCP6 bool
	// DeleteDevice deletes the devices of pods by their index. It returns when their names, addresses and routes are
	// free, and returns nil for a missing device. nil deletes them in place, and waits for RCU grace periods.
	DeleteDevice func(ns *netns.Namespace, index int) error
}

func (n Network) bridge() string { return cmp.Or(n.Bridge, DefaultBridge) }

func (n Network) mtu() int { return cmp.Or(n.MTU, DefaultMTU) }

func (n Network) attrs(name string) netlink.LinkAttrs {
	out := newAttrs(name)
	out.MTU = n.mtu()
	return out
}

func (n Network) gateway(addr netip.Addr) (netip.Prefix, bool) {
	for _, gateway := range n.Gateways {
		if gateway.Addr().Is4() == addr.Is4() {
			return gateway, true
		}
	}
	return netip.Prefix{}, false
}

func (n Network) gatewayAddrs() []netip.Prefix { return hostPrefixes(rtnl.Addrs(n.Gateways)...) }

// nextHop is the next hop of the default route of pods in a gateway's prefix: the router, or else the host.
func (n Network) nextHop(gateway netip.Prefix) netip.Addr {
	for _, router := range n.Routers {
		if router.Is4() == gateway.Addr().Is4() {
			return router
		}
	}
	return gateway.Addr()
}

func (n Network) open(ns *netns.Namespace) (nsHandle, error) {
	h, err := openHandle(ns)
	h.deleteDevice, h.bigTCP, h.bigTCP6 = n.DeleteDevice, n.BigTCP, n.BigTCP6
	return h, err
}

func (n Network) openHost() (nsHandle, error) {
	if err := n.validateHost(); err != nil {
		return nsHandle{}, err
	}
	return n.open(n.Host)
}

var errNoSwitch = errors.New("no Open vSwitch in the network")

func openSwitch(network Network) (*ovs.Switch, error) {
	if network.OVSDB == "" {
		return nil, errNoSwitch
	}
	return ovs.Open(network.OVSDB)
}

// ovsDatapath returns the datapath of the network's bridge, after Setup: ovs.Kernel or ovs.UserSpace.
func (n Network) ovsDatapath() (_ string, err error) {
	defer wrap(&err, "read the datapath of Open vSwitch")
	s, err := openSwitch(n)
	if err != nil {
		return "", err
	}
	defer s.Close()
	bridge, err := s.Bridge(n.bridge())
	return bridge.Datapath, err
}

func (n Network) validateHost() error {
	if n.Host == nil {
		return errors.New("no host namespace in the network")
	}
	return nil
}

func (n Network) validate() error {
	if err := n.validateHost(); err != nil {
		return err
	}
	if mtu := n.mtu(); mtu < minMTU || mtu > maxMTU {
		return fmt.Errorf("MTU %d is not between %d and %d", mtu, minMTU, maxMTU)
	}
	for i, gateway := range n.Gateways {
		switch {
		case !gateway.IsValid() || !isHostAddress(gateway.Addr()):
			return fmt.Errorf("invalid gateway %v: want a host's address with its prefix", gateway)
		case slices.ContainsFunc(n.Gateways[:i], func(o netip.Prefix) bool { return o.Addr().Is4() == gateway.Addr().Is4() }):
			return fmt.Errorf("gateway %v is the second one of its family", gateway)
		}
		if err := n.validateMTU(gateway.Addr()); err != nil {
			return err
		}
	}
	return n.validateRouters()
}

// validateMTU checks the MTU for an address of addr's family. The kernel disables IPv6 on devices with smaller ones.
func (n Network) validateMTU(addr netip.Addr) error {
	if addr.Is6() && n.mtu() < minMTU6 {
		return fmt.Errorf("MTU %d is less than the %d that address %v needs", n.mtu(), minMTU6, addr)
	}
	return nil
}

func (n Network) validateRouters() error {
	for i, router := range n.Routers {
		own, ok := n.gateway(router)
		switch {
		case !IsRouter(router):
			return fmt.Errorf("invalid router %v: want the address of a host", router)
		case !ok:
			return fmt.Errorf("router %v: the network lacks a gateway of its family", router)
		case own.Addr() == router:
			return fmt.Errorf("router %v is the host's own address", router)
		case slices.ContainsFunc(n.Routers[:i], func(other netip.Addr) bool { return other.Is4() == router.Is4() }):
			return fmt.Errorf("router %v is the second one of its family", router)
		}
	}
	return nil
}

func isHostAddress(addr netip.Addr) bool {
	return addr.IsValid() && addr.Zone() == "" && !addr.Is4In6() && !addr.IsUnspecified() &&
		!addr.IsMulticast() && !addr.IsLoopback() && !addr.IsLinkLocalUnicast() &&
		addr != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// IsRouter reports whether addr can be a router's: the address of a host, or a link-local one (RFC 3927, RFC 4861).
func IsRouter(addr netip.Addr) bool {
	return isHostAddress(addr) || addr.IsLinkLocalUnicast() && addr.Zone() == "" && !addr.Is4In6()
}

// validateName applies the kernel's rules for names of devices (dev_valid_name), and
// rejects "%", which the kernel replaces.
func validateName(device, name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%s: the name is empty", device)
	case len(name) >= unix.IFNAMSIZ:
		return fmt.Errorf("%s: the name %q has more than %d bytes", device, name, unix.IFNAMSIZ-1)
	case name == "." || name == ".." || name == "all" || name == "default" || name == "lo",
		strings.ContainsAny(name, "/:% \t\n\v\f\r\x00"):
		return fmt.Errorf("%s: invalid name %q", device, name)
	}
	return nil
}

// VXLAN is a tunnel between the bridges of two hosts. Its forwarding is static: it neither learns nor uses multicast,
// and frames without an entry, broadcasts included, go to the other host.
type VXLAN struct {
	ID int // the network's identifier, up to 1<<24-1
	// Local and Remote are the addresses of this host and of the other one, of one family.
	Local, Remote netip.Addr
}

const (
	// VXLANDevice is the bridge's port to the other host: a device of the kernel, or a port of Open vSwitch.
	VXLANDevice = "mst-vxlan"
	// VXLANPort is the UDP port that IANA assigned to VXLAN (RFC 7348).
	VXLANPort = 4789
	// VXLANOverhead is the number of bytes that VXLAN adds to a packet over IPv4: an
	// inner Ethernet header, and the headers of VXLAN, UDP and IPv4.
	VXLANOverhead = 14 + 8 + 8 + 20
)

func (v VXLAN) enabled() bool { return v != VXLAN{} }

func (v VXLAN) validate() error {
	switch {
	case !v.enabled():
		return nil
	case v.ID < 1 || v.ID >= 1<<24:
		return fmt.Errorf("VXLAN id %d is not between 1 and %d", v.ID, 1<<24-1)
	case !isHostAddress(v.Local) || !isHostAddress(v.Remote) || v.Local.Is4() != v.Remote.Is4() || v.Local == v.Remote:
		return fmt.Errorf("VXLAN from %v to %v: want addresses of two hosts, of one family", v.Local, v.Remote)
	}
	return nil
}

// AddRemote adds a forwarding entry to the VXLAN device of a bridge that is set up: the MAC address is on the other
// host. If the entry exists it returns nil. A port of Open vSwitch needs none.
func (n Network) AddRemote(mac net.HardwareAddr) (err error) {
	defer wrap(&err, "add remote pod")
	host, err := n.openHost()
	if err != nil {
		return err
	}
	defer host.Close()
	link, err := host.link(VXLANDevice)
	if err != nil {
		return err
	}
	err = host.NeighSet(&netlink.Neigh{
		LinkIndex: link.Attrs().Index, Family: unix.AF_BRIDGE, Flags: netlink.NTF_SELF,
		State: netlink.NUD_PERMANENT | netlink.NUD_NOARP, IP: n.VXLAN.Remote.AsSlice(), HardwareAddr: mac,
	})
	if err != nil {
		return fmt.Errorf("add forwarding entry of %v to device %q in %q: %w", mac, VXLANDevice, host.ns.Name(), err)
	}
	return nil
}
