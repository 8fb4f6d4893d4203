// SPDX-License-Identifier: Apache-2.0

package linkinfo

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
)

type attribute struct {
	name string
	id   uint16
	form func(uint64) any
}

func isSet(n uint64) any { return n != 0 }

// callPrefix begins settings of bridges that a sysctl can switch on for a namespace: firewalls of br_netfilter.
const callPrefix = "nf_call_"

var bridgeAttributes = []attribute{
	{"stp", vnl.IFLA_BR_STP_STATE, isSet},
	{"forward_delay_ms", vnl.IFLA_BR_FORWARD_DELAY, func(n uint64) any { return int(n) * 10 }},
	{"vlan_filtering", vnl.IFLA_BR_VLAN_FILTERING, isSet},
	{"mcast_snooping", vnl.IFLA_BR_MCAST_SNOOPING, isSet},
	{callPrefix + "iptables", vnl.IFLA_BR_NF_CALL_IPTABLES, isSet},
	{callPrefix + "ip6tables", vnl.IFLA_BR_NF_CALL_IP6TABLES, isSet},
	{callPrefix + "arptables", vnl.IFLA_BR_NF_CALL_ARPTABLES, isSet},
}

var portAttributes = []attribute{
	{"state", vnl.IFLA_BRPORT_STATE, func(n uint64) any {
		return oneOf([]string{"disabled", "listening", "learning", "forwarding", "blocking"}, int(n))
	}},
	{"hairpin", vnl.IFLA_BRPORT_MODE, isSet},
	{"learning", vnl.IFLA_BRPORT_LEARNING, isSet},
	{"isolated", vnl.IFLA_BRPORT_ISOLATED, isSet},
}

func read(attributes []attribute, data map[uint16][]byte) []Setting {
	out := []Setting{}
	for _, a := range attributes {
		value := data[a.id]
		switch len(value) {
		case 1:
			out = append(out, Setting{a.name, a.form(uint64(value[0]))})
		case 2:
			out = append(out, Setting{a.name, a.form(uint64(binary.NativeEndian.Uint16(value)))})
		case 4:
			out = append(out, Setting{a.name, a.form(uint64(binary.NativeEndian.Uint32(value)))})
		}
	}
	return out
}

// addNamespaceCalls: br_netfilter acts if a bridge's setting or the namespace's sysctl is on, which may be missing.
func addNamespaceCalls(n *netns.Namespace, links []Link) {
	for _, link := range links {
		for i, s := range link.Settings {
			if table, isCall := strings.CutPrefix(s.Name, callPrefix); isCall {
				value, err := rtnl.In(n).Sysctl("net/bridge/bridge-nf-call-" + table)
				link.Settings[i].Value = err == nil && (s.Value == true || value != "0")
			}
		}
	}
}

// describe returns a link's mode and settings; data are the attributes of its kind.
func describe(link netlink.Link, data map[uint16][]byte) (mode string, settings []Setting) {
	switch link := link.(type) {
	case *netlink.Bridge:
		settings = read(bridgeAttributes, data)
		if id := data[vnl.IFLA_BR_BRIDGE_ID]; len(id) == 8 { // in the form of brctl
			settings = slices.Insert(settings, 0, Setting{"id", fmt.Sprintf("%x.%x", id[:2], id[2:])})
		}
		return "", settings
	case *netlink.Macvlan:
		return oneOf(macvlanModes, int(link.Mode)), nil
	case *netlink.Macvtap:
		return oneOf(macvlanModes, int(link.Mode)), nil
	case *netlink.IPVlan:
		return ipvlan(link)
	case *netlink.IPVtap:
		return ipvlan(&link.IPVlan)
	case *netlink.Netkit:
		policy := map[netlink.NetkitPolicy]string{netlink.NETKIT_POLICY_FORWARD: "forward",
			netlink.NETKIT_POLICY_BLACKHOLE: "blackhole"}
		return oneOf([]string{"l2", "l3"}, int(link.Mode)), []Setting{
			{"primary", link.IsPrimary()}, {"policy", policy[link.Policy]}, {"peer_policy", policy[link.PeerPolicy]},
		}
	case *netlink.Tuntap:
		mode = "tap"
		if link.Mode == unix.IFF_TUN {
			mode = "tun"
		}
		return mode, []Setting{
			{"packet_information", link.Flags&netlink.TUNTAP_NO_PI == 0},
			{"vnet_hdr", link.Flags&netlink.TUNTAP_VNET_HDR != 0},
			{"multi_queue", link.Flags&netlink.TUNTAP_MULTI_QUEUE != 0},
			{"persistent", !link.NonPersist},
		}
	case *netlink.Vlan:
		return "", []Setting{{"id", link.VlanId}, {"protocol", link.VlanProtocol.String()}}
	case *netlink.Vxlan:
		settings = tunnel(link.VxlanId, link.Port, link.Group)
		if link.SrcAddr != nil {
			settings = append(settings, Setting{"local", link.SrcAddr.String()})
		}
		return "", append(settings, Setting{"learning", link.Learning}, Setting{"external", link.FlowBased})
	case *netlink.Geneve:
		return "", tunnel(int(link.ID), int(link.Dport), link.Remote)
	case *netlink.Bond:
		return link.Mode.String(), nil
	case *netlink.Vrf:
		return "", []Setting{{"table", int(link.Table)}}
	}
	return "", nil
}

// macvlanModes are the modes of macvlan devices by the library's number.
var macvlanModes = []string{"default", "private", "vepa", "bridge", "passthru", "source"}

func ipvlan(link *netlink.IPVlan) (string, []Setting) {
	flags := []string{"bridge", "private", "vepa"}
	return oneOf([]string{"l2", "l3", "l3s"}, int(link.Mode)), []Setting{{"flag", oneOf(flags, int(link.Flag))}}
}

func tunnel(id, port int, remote net.IP) []Setting {
	settings := []Setting{{"id", id}, {"port", port}}
	if remote != nil {
		settings = append(settings, Setting{"remote", remote.String()})
	}
	return settings
}

func oneOf(names []string, i int) string {
	if i < 0 || i >= len(names) {
		return fmt.Sprintf("mode %d", i)
	}
	return names[i]
}

const sameNamespace = -1 // the netnsid that means the namespace itself

// attributesOf splits netlink attributes. The library has rejected malformed ones before.
func attributesOf(data []byte) map[uint16][]byte {
	out := map[uint16][]byte{}
	parsed, _ := vnl.ParseRouteAttr(data)
	for _, attribute := range parsed {
		kind := attribute.Attr.Type &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
		out[kind] = attribute.Value
	}
	return out
}

// listLinks reads the links of n, or of the namespace with netnsid nsid in n, sorted by index.
func listLinks(n *netns.Namespace, nsid int) ([]Link, error) {
	var attributes []*vnl.RtAttr
	if nsid != sameNamespace {
		attributes = append(attributes, vnl.NewRtAttr(unix.IFLA_TARGET_NETNSID, vnl.Uint32Attr(uint32(nsid))))
	}
	messages, err := rtnl.In(n).LinkMessages(attributes...)
	if err != nil {
		return nil, err
	}
	links := make([]Link, 0, len(messages))
	for _, message := range messages {
		link, err := netlink.LinkDeserialize(nil, message)
		if err != nil {
			return nil, fmt.Errorf("read a device in network namespace %q: %w", n.Name(), err)
		}
		links = append(links, newLink(link, attributesOf(message[unix.SizeofIfInfomsg:])))
	}
	slices.SortFunc(links, func(a, b Link) int { return cmp.Compare(a.Index, b.Index) })
	return links, nil
}
