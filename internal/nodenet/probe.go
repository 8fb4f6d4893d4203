// SPDX-License-Identifier: Apache-2.0

package nodenet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
)

// probeID is the VXLAN id of probes: no agent's device takes their packets.
const probeID = networkID + 1

const probeDevice = "probe"

// ProbeEnd is a VXLAN device for a probe. It has the properties of the agent's device, but a namespace of its own. The
// host gets no device, only the UDP port while the probe lasts.
type ProbeEnd struct {
	Host, Inside *netns.Namespace
	// Local and Remote are addresses of the nodes. Without Remote, the device learns the other node from its packets.
	Local, Remote netip.Addr
	Port          uint16
	MTU           int          // of packets inside the tunnel
	Address       netip.Prefix // inside the tunnel
}

// Add adds the device, and sets it up. Delete removes it at once; otherwise the kernel does some time after
// Inside is closed.
func (p ProbeEnd) Add() error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.Namespace = probeDevice, p.MTU, netlink.NsFd(p.Inside.FD())
	link := newVXLAN(attrs, probeID, p.Local, p.Port)
	link.Limit = 1 << 14 // learned addresses: each probe has one for 5 minutes, and anybody can send packets
	if link.Learning = !p.Remote.IsValid(); !link.Learning {
		link.Group = net.IP(p.Remote.AsSlice())
	}
	handle, err := rtnl.In(p.Host).Handle()
	if err != nil {
		return err
	}
	defer handle.Close()
	if err = handle.LinkAdd(link); err == nil {
		err = rtnl.In(p.Inside).Configure(probeDevice,
			rtnl.DeviceConfig{Addresses: []netip.Prefix{p.Address}, Up: true})
	}
	switch {
	case errors.Is(err, unix.EEXIST):
		err = errors.New("another preflight runs on this node, or ended just now")
	case errors.Is(err, unix.EADDRINUSE):
		err = fmt.Errorf("another program uses UDP port %d exclusively", p.Port)
	}
	if err != nil {
		return fmt.Errorf("VXLAN device of the probe: %w", err)
	}
	return nil
}

// Delete deletes the device.
func (p ProbeEnd) Delete() error {
	return rtnl.In(p.Inside).OnDevice("delete ", probeDevice,
		func(handle *netlink.Handle, link netlink.Link) error { return handle.LinkDel(link) })
}

// Toward returns the device by which packets to another node leave, and the address that they leave with.
func Toward(node *netns.Namespace, peer netip.Addr) (device rtnl.Device, local netip.Addr, err error) {
	fail := func(err error) (rtnl.Device, netip.Addr, error) {
		return rtnl.Device{}, netip.Addr{}, fmt.Errorf("route to %v: %w", peer, err)
	}
	conn := rtnl.In(node)
	handle, err := conn.Handle()
	if err != nil {
		return fail(err)
	}
	defer handle.Close()
	routes, err := handle.RouteGet(peer.AsSlice())
	if err != nil {
		return fail(err)
	}
	local, _ = netip.AddrFromSlice(routes[0].Src)
	if device, err = conn.DeviceByIndex(routes[0].LinkIndex); err != nil {
		return fail(err)
	}
	if routes[0].Type != unix.RTN_UNICAST {
		return fail(errors.New("not an address of another node"))
	}
	return device, local.Unmap(), nil
}

// At returns the device with an address of the node, as the tunnel uses it.
func At(node *netns.Namespace, local netip.Addr) (rtnl.Device, error) {
	conn := rtnl.In(node)
	handle, err := conn.Handle()
	if err != nil {
		return rtnl.Device{}, err
	}
	defer handle.Close()
	return host{handle, conn}.underlay(local)
}

// TunnelsAt returns the VXLAN and Geneve devices of others at a UDP port, and whether the agent's device can share the
// port with all of them.
func TunnelsAt(node *netns.Namespace, port uint16) (names []string, shared bool, err error) {
	handle, err := rtnl.In(node).Handle()
	if err != nil {
		return nil, false, err
	}
	defer handle.Close()
	links, err := rtnl.Dump(handle.LinkList)
	shared = true
	for _, link := range links {
		switch l := link.(type) {
		case *netlink.Vxlan:
			if l.Port != int(port) || l.VxlanId == networkID {
				continue
			}
			shared = shared && !l.FlowBased && !l.GBP // else the kernel refuses the socket to another device
		case *netlink.Geneve:
			if l.Dport != port {
				continue
			}
			shared = false
		default:
			continue
		}
		names = append(names, link.Attrs().Name)
	}
	return names, shared, err
}

// ProxyRules returns kube-proxy's tables and chains of services in nftables, and in iptables over nftables.
func ProxyRules(node *netns.Namespace) (names []string, err error) {
	conn, err := nftables.New(nftables.WithNetNSFd(node.FD()))
	var chains []*nftables.Chain
	if err == nil {
		chains, err = conn.ListChains()
	}
	for _, c := range chains {
		name := fmt.Sprintf("table %s %s", familyNames[c.Table.Family], c.Table.Name)
		if c.Name == "KUBE-SERVICES" {
			name = fmt.Sprintf("chain %s %s %s", familyNames[c.Table.Family], c.Table.Name, c.Name)
		} else if c.Table.Name != "kube-proxy" {
			continue
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names, err
}
