// SPDX-License-Identifier: Apache-2.0

package linkinfo

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
)

// callTables are the firewalls that br_netfilter can pass bridged packets to.
var callTables = []callTable{
	{"nf_call_iptables", vnl.IFLA_BR_NF_CALL_IPTABLES, "net/bridge/bridge-nf-call-iptables"},
	{"nf_call_ip6tables", vnl.IFLA_BR_NF_CALL_IP6TABLES, "net/bridge/bridge-nf-call-ip6tables"},
	{"nf_call_arptables", vnl.IFLA_BR_NF_CALL_ARPTABLES, "net/bridge/bridge-nf-call-arptables"},
}

// callTable is a bridge setting that a sysctl can switch on for all bridges of a namespace.
type callTable struct {
	setting   string
	attribute uint16
	sysctl    string
}

// bridge reads a bridge's settings, with its id in the form of brctl.
func (r rawLink) bridge() []Setting {
	data := attributesOf(r.info[vnl.IFLA_INFO_DATA])
	var out []Setting
	if id := data[vnl.IFLA_BR_BRIDGE_ID]; len(id) == 8 {
		out = append(out, Setting{"id", hex.EncodeToString(id[:2]) + "." + hex.EncodeToString(id[2:])})
	}
	if state, ok := number(data[vnl.IFLA_BR_STP_STATE]); ok {
		out = append(out, Setting{"stp", state != 0})
	}
	if delay, ok := number(data[vnl.IFLA_BR_FORWARD_DELAY]); ok {
		out = append(out, Setting{"forward_delay_ms", int(delay) * 10})
	}
	out = addFlag(out, "vlan_filtering", data[vnl.IFLA_BR_VLAN_FILTERING])
	out = addFlag(out, "mcast_snooping", data[vnl.IFLA_BR_MCAST_SNOOPING])
	for _, table := range callTables {
		out = addFlag(out, table.setting, data[table.attribute])
	}
	return out
}

// port reads a bridge port's settings; nil for other links.
func (r rawLink) port() []Setting {
	kind, _, _ := bytes.Cut(r.info[vnl.IFLA_INFO_SLAVE_KIND], []byte{0})
	if string(kind) != "bridge" {
		return nil
	}
	data := attributesOf(r.info[vnl.IFLA_INFO_SLAVE_DATA])
	out := []Setting{}
	if state, ok := number(data[vnl.IFLA_BRPORT_STATE]); ok {
		names := []string{"disabled", "listening", "learning", "forwarding", "blocking"}
		out = append(out, Setting{"state", oneOf(names, int(state))})
	}
	out = addFlag(out, "hairpin", data[vnl.IFLA_BRPORT_MODE])
	out = addFlag(out, "learning", data[vnl.IFLA_BRPORT_LEARNING])
	return addFlag(out, "isolated", data[vnl.IFLA_BRPORT_ISOLATED])
}

// addFlag appends a boolean attribute if it is present.
func addFlag(settings []Setting, name string, value []byte) []Setting {
	if on, ok := number(value); ok {
		return append(settings, Setting{name, on != 0})
	}
	return settings
}

// addNamespaceCalls switches on the settings that sysctls of the namespace switch on for all bridges: br_netfilter acts
// if either is set.
func addNamespaceCalls(n *netns.Namespace, links []Link) {
	for _, table := range callTables {
		// Without br_netfilter the sysctl does not exist.
		value, err := rtnl.In(n).Sysctl(table.sysctl)
		for _, link := range links {
			if link.Kind != "bridge" {
				continue
			}
			for i := range link.Settings {
				s := &link.Settings[i]
				if on, isBool := s.Value.(bool); isBool && s.Name == table.setting {
					s.Value = err == nil && (on || value != "0")
				}
			}
		}
	}
}

// describe returns a link's mode and the settings of its kind.
func describe(raw rawLink) (mode string, settings []Setting) {
	switch link := raw.link.(type) {
	case *netlink.Bridge:
		return "", raw.bridge()
	case *netlink.Macvlan:
		return oneOf(macvlanModes, int(link.Mode)), nil
	case *netlink.Macvtap:
		return oneOf(macvlanModes, int(link.Mode)), nil
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

// macvlanModes are the modes of macvlan devices by the library's number.
var macvlanModes = []string{"default", "private", "vepa", "bridge", "passthru", "source"}

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

// tunnel returns the settings of a UDP tunnel.
func tunnel(id, port int, remote net.IP) []Setting {
	settings := []Setting{{"id", id}, {"port", port}}
	if remote != nil {
		settings = append(settings, Setting{"remote", remote.String()})
	}
	return settings
}

// oneOf returns the name of a number.
func oneOf(names []string, i int) string {
	if i < 0 || i >= len(names) {
		return fmt.Sprintf("mode %d", i)
	}
	return names[i]
}
