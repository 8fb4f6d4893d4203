// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// describe returns a link's mode, and the settings that are of interest for
// devices of its kind.
func describe(raw rawLink) (mode string, settings []Setting) {
	switch link := raw.link.(type) {
	case *netlink.Bridge:
		return "", raw.bridge()
	case *netlink.Macvlan:
		return macvlanMode(link.Mode), nil
	case *netlink.Macvtap:
		return macvlanMode(link.Mode), nil
	case *netlink.IPVlan:
		return ipvlan(link)
	case *netlink.IPVtap:
		return ipvlan(&link.IPVlan)
	case *netlink.Netkit:
		return netkit(link)
	case *netlink.Tuntap:
		return tuntap(link)
	case *netlink.Vlan:
		return "", []Setting{{"id", link.VlanId}, {"protocol", link.VlanProtocol.String()}}
	case *netlink.Vxlan:
		return "", vxlan(link)
	case *netlink.Geneve:
		return "", tunnel(int(link.ID), int(link.Dport), link.Remote)
	case *netlink.Bond:
		return link.Mode.String(), nil
	case *netlink.Vrf:
		return "", []Setting{{"table", int(link.Table)}}
	}
	return "", nil
}

func macvlanMode(mode netlink.MacvlanMode) string {
	switch mode {
	case netlink.MACVLAN_MODE_PRIVATE:
		return "private"
	case netlink.MACVLAN_MODE_VEPA:
		return "vepa"
	case netlink.MACVLAN_MODE_BRIDGE:
		return "bridge"
	case netlink.MACVLAN_MODE_PASSTHRU:
		return "passthru"
	case netlink.MACVLAN_MODE_SOURCE:
		return "source"
	}
	return fmt.Sprintf("mode %d", mode)
}

func ipvlan(link *netlink.IPVlan) (string, []Setting) {
	modes := []string{"l2", "l3", "l3s"}
	flags := []string{"bridge", "private", "vepa"}
	return oneOf(modes, int(link.Mode)), []Setting{{"flag", oneOf(flags, int(link.Flag))}}
}

func netkit(link *netlink.Netkit) (string, []Setting) {
	policy := map[netlink.NetkitPolicy]string{netlink.NETKIT_POLICY_FORWARD: "forward", netlink.NETKIT_POLICY_BLACKHOLE: "blackhole"}
	return oneOf([]string{"l2", "l3"}, int(link.Mode)), []Setting{
		{"primary", link.IsPrimary()}, {"policy", policy[link.Policy]}, {"peer_policy", policy[link.PeerPolicy]},
	}
}

func tuntap(link *netlink.Tuntap) (string, []Setting) {
	mode := "tap"
	if link.Mode == unix.IFF_TUN {
		mode = "tun"
	}
	flag := func(flag netlink.TuntapFlag) bool { return link.Flags&flag != 0 }
	return mode, []Setting{
		{"packet_information", !flag(netlink.TUNTAP_NO_PI)},
		{"vnet_hdr", flag(netlink.TUNTAP_VNET_HDR)},
		{"multi_queue", flag(netlink.TUNTAP_MULTI_QUEUE)},
		{"persistent", !link.NonPersist},
	}
}

func vxlan(link *netlink.Vxlan) []Setting {
	settings := tunnel(link.VxlanId, link.Port, link.Group)
	if link.SrcAddr != nil {
		settings = append(settings, Setting{"local", link.SrcAddr.String()})
	}
	return append(settings, Setting{"learning", link.Learning}, Setting{"external", link.FlowBased})
}

// tunnel are the settings of a tunnel over UDP.
func tunnel(id, port int, remote net.IP) []Setting {
	settings := []Setting{{"id", id}, {"port", port}}
	if remote != nil {
		settings = append(settings, Setting{"remote", remote.String()})
	}
	return settings
}

// oneOf is the name of a number.
func oneOf(names []string, i int) string {
	if i < 0 || i >= len(names) {
		return fmt.Sprintf("mode %d", i)
	}
	return names[i]
}
