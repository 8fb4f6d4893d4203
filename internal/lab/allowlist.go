// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"mustang/internal/netns"
	"mustang/internal/policy"
	"mustang/internal/service"
)

// allowRule allows TCP connections over IPv4 from some addresses to one port of pod-a. What no rule of the list allows is denied.
type allowRule struct {
	From netip.Prefix
	Port uint16
}

// allowlistName is that of the policy, of the pod in labels, and of what is named after the pod in rules.
const allowlistName = "allowlist"

// snapshot returns a list as a NetworkPolicy, with the pod that it selects; nothing for an empty list.
func snapshot(rules []allowRule) policy.Snapshot {
	if len(rules) == 0 {
		return policy.Snapshot{}
	}
	labels := map[string]string{"app": allowlistName}
	subject := policy.PodSelector{
		Namespaces: policy.Selector{Labels: map[string]string{policy.NamespaceLabel: "default"}}, Pods: policy.Selector{Labels: labels},
	}
	p := policy.Policy{Tier: policy.Namespaced, Namespace: "default", Name: allowlistName, IsolatesIngress: true, Subject: subject}
	for _, r := range rules {
		p.Ingress = append(p.Ingress, policy.Rule{
			Peers: []policy.Peer{{Block: &policy.Block{CIDR: r.From}}},
			Ports: []policy.Port{{Protocol: service.TCP, First: r.Port, Last: r.Port}},
		})
	}
	return policy.Snapshot{
		Pods:     []policy.Pod{{Namespace: "default", Name: allowlistName, Labels: labels, Addresses: PodAIPs[:1]}},
		Policies: []policy.Policy{p},
	}
}

// ruleForm is a list as firewall rules of a host. A program reads the changes to them.
type ruleForm struct {
	program []string
	// before begins a list of no rules, and after ends it; clear removes what both make.
	before, after, clear string
	// rule adds one while the list is written; add and remove change a list of that many.
	rule        func(allowRule) string
	add, remove func(r allowRule, rules int) string
	// The first rule of chain first counts packets of established connections. The last two rules of chain second allow and deny.
	table, first, second string
}

// ruleForms are the forms by the implementation of the policy.
var ruleForms = map[string]ruleForm{
	// That of kube-router and of Calico without ipsets: established connections are accepted first, then the pod's chain has a rule for
	// each of the list's, and one that drops. As Calico's Felix it writes a changed rule alone.
	ViaIPTables: {
		program: []string{"iptables-restore", "-w", "--noflush"},
		before: "*filter\n:FORWARD ACCEPT [0:0]\n:POD-ALLOWLIST - [0:0]\n-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n" +
			"-A FORWARD -d " + PodAIPs[0].String() + " -j POD-ALLOWLIST\n",
		rule:  func(r allowRule) string { return "-A POD-ALLOWLIST " + r.iptables() },
		after: "-A POD-ALLOWLIST -j DROP\nCOMMIT\n",
		add: func(r allowRule, rules int) string {
			return fmt.Sprintf("*filter\n-I POD-ALLOWLIST %d %sCOMMIT\n", rules+1, r.iptables())
		},
		remove: func(_ allowRule, rules int) string {
			return fmt.Sprintf("*filter\n-D POD-ALLOWLIST %d\nCOMMIT\n", rules+1)
		},
		clear: "*filter\n-F FORWARD\n-F POD-ALLOWLIST\n-X POD-ALLOWLIST\nCOMMIT\n",
		table: "filter", first: "FORWARD", second: "POD-ALLOWLIST",
	},
	// What nftables has for long lists: a verdict map leads to the pod's chain, and one set of ranges of addresses with protocol and port has
	// all rules. Linux 6.12 looks up no meta l4proto among intervals.
	ViaNFTables: {
		program: []string{"nft", "-f", "-"},
		before: "add table ip mustang-policy\n" +
			"add chain ip mustang-policy forward { type filter hook forward priority 0 ; }\n" +
			"add chain ip mustang-policy pod-allowlist\n" +
			"add map ip mustang-policy pods { type ipv4_addr : verdict ; }\n" +
			"add set ip mustang-policy allowlist { type ipv4_addr . inet_proto . inet_service ; flags interval ; }\n" +
			"add element ip mustang-policy pods { " + PodAIPs[0].String() + " : goto pod-allowlist }\n",
		rule: func(r allowRule) string { return r.nftables("add") },
		after: "add rule ip mustang-policy forward ct state established,related counter accept\n" +
			"add rule ip mustang-policy forward ip daddr vmap @pods\n" +
			"add rule ip mustang-policy pod-allowlist ip saddr . ip protocol . th dport @allowlist counter accept\n" +
			"add rule ip mustang-policy pod-allowlist counter drop\n",
		add:    func(r allowRule, _ int) string { return r.nftables("add") },
		remove: func(r allowRule, _ int) string { return r.nftables("delete") },
		clear:  "delete table ip mustang-policy\n",
		table:  "mustang-policy", first: "forward", second: "pod-allowlist",
	},
}

// iptables returns the match and the target of the rule.
func (r allowRule) iptables() string {
	return fmt.Sprintf("-s %s -p tcp -m tcp --dport %d -j ACCEPT\n", r.From, r.Port)
}

// nftables returns the command that adds the rule to the set, or deletes it there.
func (r allowRule) nftables(verb string) string {
	return fmt.Sprintf("%s element ip mustang-policy allowlist { %s . tcp . %d }\n", verb, r.From, r.Port)
}

// write returns the input that writes a list into a host that has none.
func (f ruleForm) write(rules []allowRule) string {
	var text strings.Builder
	text.WriteString(f.before)
	for _, r := range rules {
		text.WriteString(f.rule(r))
	}
	return text.String() + f.after
}

// counters reads the counters of the rules: "established" of connections that were allowed before, "allowed" and "denied".
func (f ruleForm) counters(host *netns.Namespace) (map[string]uint64, error) {
	conn, err := nftables.New(nftables.WithNetNSFd(host.FD()))
	if err != nil {
		return nil, fmt.Errorf("counters of table %s: %w", f.table, err)
	}
	table := &nftables.Table{Family: nftables.TableFamilyIPv4, Name: f.table}
	var counts [2][]uint64
	for i, chain := range []string{f.first, f.second} {
		rules, err := conn.GetRules(table, &nftables.Chain{Name: chain, Table: table})
		if err != nil {
			return nil, fmt.Errorf("counters of table %s, chain %s: %w", f.table, chain, err)
		}
		for _, r := range rules {
			counts[i] = append(counts[i], counted(r))
		}
	}
	first, second := counts[0], counts[1]
	if len(first) < 1 || len(second) < 2 {
		return nil, fmt.Errorf("table %s has %d and %d rules", f.table, len(first), len(second))
	}
	return map[string]uint64{"established": first[0], "allowed": second[len(second)-2], "denied": second[len(second)-1]}, nil
}

// counted returns the packets that a rule has counted.
func counted(r *nftables.Rule) uint64 {
	for _, e := range r.Exprs {
		if c, ok := e.(*expr.Counter); ok {
			return c.Packets
		}
	}
	return 0
}
