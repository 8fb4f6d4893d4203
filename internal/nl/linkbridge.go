// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"bytes"
	"encoding/hex"

	vnl "github.com/vishvananda/netlink/nl"
)

// callTables are what a bridge can pass its packets to by br_netfilter.
func callTables() []callTable {
	return []callTable{
		{"nf_call_iptables", vnl.IFLA_BR_NF_CALL_IPTABLES, "net/bridge/bridge-nf-call-iptables"},
		{"nf_call_ip6tables", vnl.IFLA_BR_NF_CALL_IP6TABLES, "net/bridge/bridge-nf-call-ip6tables"},
		{"nf_call_arptables", vnl.IFLA_BR_NF_CALL_ARPTABLES, "net/bridge/bridge-nf-call-arptables"},
	}
}

// callTable is a bridge's setting that its namespace can make as well, for all
// of its bridges.
type callTable struct {
	setting   string
	attribute uint16
	sysctl    string
}

// bridge reads a bridge's settings; its id as brctl prints it.
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
	for _, table := range callTables() {
		out = addFlag(out, table.setting, data[table.attribute])
	}
	return out
}

// port reads a link's settings as a port of a bridge, if it is one.
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

// addFlag adds an attribute that is a flag, if it is there.
func addFlag(settings []Setting, name string, value []byte) []Setting {
	if on, ok := number(value); ok {
		return append(settings, Setting{name, on != 0})
	}
	return settings
}

// addNamespaceCalls switches on, in the settings of n's bridges, what n's own
// sysctls switch on for all bridges: a packet is passed on if either is on.
func (n *Namespace) addNamespaceCalls(links []Link) {
	for _, table := range callTables() {
		// Without br_netfilter there is no such sysctl, and nothing is passed on.
		value, err := n.Sysctl(table.sysctl)
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
