// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"sigs.k8s.io/knftables"

	"mustang/internal/netns"
	"mustang/internal/policy"
	"mustang/internal/service"
)

// allowRule allows TCP over IPv4 from some addresses to one port of pod-a. A list denies the rest.
type allowRule struct {
	From netip.Prefix
	Port uint16
}

const allowlistName = "allowlist" // names the policy, the pod in labels, and the pod's objects in rules

func snapshot(rules []allowRule) policy.Snapshot {
	if len(rules) == 0 {
		return policy.Snapshot{}
	}
	labels := map[string]string{"app": allowlistName}
	p := policy.Policy{
		Tier: policy.Namespaced, Namespace: podNamespace, Name: allowlistName, IsolatesIngress: true,
		Subject: policy.PodSelector{
			Namespaces: policy.Selector{Labels: map[string]string{policy.NamespaceLabel: podNamespace}},
			Pods:       policy.Selector{Labels: labels},
		},
	}
	for _, r := range rules {
		p.Ingress = append(p.Ingress, policy.Rule{
			Peers: []policy.Peer{{Block: &policy.Block{CIDR: r.From}}},
			Ports: []policy.Port{{Protocol: service.TCP, First: r.Port, Last: r.Port}},
		})
	}
	return policy.Snapshot{
		Pods:     []policy.Pod{{Namespace: podNamespace, Name: allowlistName, Labels: labels, Addresses: PodAIPs[:1]}},
		Policies: []policy.Policy{p},
	}
}

// listTable is the nftables table of an allow list, in the form that nftables offers for long lists. A verdict map
// leads to the pod's chain, and one set of ranges of addresses with protocol and port has all rules. Linux 6.12
// looks up no meta l4proto among intervals.
const listTable = "mustang-policy"

func (r allowRule) iptables() string {
	return fmt.Sprintf("-s %s -p tcp -m tcp --dport %d -j ACCEPT\n", r.From, r.Port)
}

// iptablesList returns the rules of kube-router, and of Calico without ipsets. Established connections are accepted
// first. Then the pod's chain has a rule for each rule of the list, and a last rule that drops.
func iptablesList(rules []allowRule) string {
	var text strings.Builder
	fmt.Fprintf(&text, `:FORWARD ACCEPT [0:0]
:POD-ALLOWLIST - [0:0]
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -d %s -j POD-ALLOWLIST
`, PodAIPs[0])
	for _, r := range rules {
		text.WriteString("-A POD-ALLOWLIST " + r.iptables())
	}
	return text.String() + "-A POD-ALLOWLIST -j DROP\n"
}

func addList(tx *knftables.Transaction, rules []allowRule) {
	tx.Add(&knftables.Table{})
	tx.Add(&knftables.Chain{
		Name: "forward", Type: knftables.PtrTo(knftables.FilterType), Hook: knftables.PtrTo(knftables.ForwardHook),
		Priority: knftables.PtrTo(knftables.FilterPriority),
	})
	tx.Add(&knftables.Chain{Name: "pod-allowlist"})
	tx.Add(&knftables.Map{Name: "pods", Type: "ipv4_addr : verdict"})
	tx.Add(&knftables.Element{Map: "pods", Key: []string{PodAIPs[0].String()}, Value: []string{"goto pod-allowlist"}})
	tx.Add(&knftables.Set{
		Name: allowlistName, Type: "ipv4_addr . inet_proto . inet_service",
		Flags: []knftables.SetFlag{knftables.IntervalFlag},
	})
	for _, r := range rules {
		tx.Add(r.element())
	}
	for _, rule := range [][2]string{
		{"forward", "ct state established,related counter accept"},
		{"forward", "ip daddr vmap @pods"},
		{"pod-allowlist", "ip saddr . ip protocol . th dport @allowlist counter accept"},
		{"pod-allowlist", "counter drop"},
	} {
		tx.Add(&knftables.Rule{Chain: rule[0], Rule: rule[1]})
	}
}

func (r allowRule) element() *knftables.Element {
	return &knftables.Element{Set: allowlistName, Key: []string{r.From.String(), "tcp", strconv.Itoa(int(r.Port))}}
}

// ruleChains: the first rule of chain first is for established connections; the last two of second allow and deny.
type ruleChains struct{ table, first, second string }

var chainsOf = map[string]ruleChains{
	ViaIPTables: {table: "filter", first: "FORWARD", second: "POD-ALLOWLIST"},
	ViaNFTables: {table: listTable, first: "forward", second: "pod-allowlist"},
}

// counters reads the numbers of packets: of established connections, allowed, denied.
func (f ruleChains) counters(host *netns.Namespace) (map[string]uint64, error) {
	conn, err := nftables.New(nftables.WithNetNSFd(host.FD()))
	if err != nil {
		return nil, fmt.Errorf("counters of table %s: %w", f.table, err)
	}
	table := &nftables.Table{Family: nftables.TableFamilyIPv4, Name: f.table}
	var counts []uint64
	for _, chain := range []string{f.first, f.second} {
		rules, err := conn.GetRules(table, &nftables.Chain{Name: chain, Table: table})
		if err != nil {
			return nil, fmt.Errorf("counters of table %s, chain %s: %w", f.table, chain, err)
		}
		if chain == f.first {
			rules = rules[:min(1, len(rules))]
		}
		for _, r := range rules {
			for _, e := range r.Exprs {
				if c, ok := e.(*expr.Counter); ok {
					counts = append(counts, c.Packets)
				}
			}
		}
	}
	last := len(counts) - 1
	if last < 2 {
		return nil, fmt.Errorf("table %s has %d rules of a list", f.table, len(counts))
	}
	return map[string]uint64{"established": counts[0], "allowed": counts[last-1], "denied": counts[last]}, nil
}
