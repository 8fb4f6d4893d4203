// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"mustang/internal/datapath/policies"
	"mustang/internal/policy"
	"mustang/internal/service"
)

// otherBlocks is the first of the ranges of addresses that rules before the last one allow. Nobody in the lab is in them.
var otherBlocks = netip.MustParsePrefix("10.128.0.0/24")

// checkPolicy checks the options of network policies and of the source guard.
func (o Options) checkPolicy() error {
	byRules := o.Policy == ViaIPTables || o.Policy == ViaNFTables
	switch {
	case o.Unguarded && o.Datapath != DatapathEBPF:
		return optionErrorf("unguarded: datapath %s: no source guard", o.Datapath)
	case o.Policy == "" && o.PolicyRules == 0:
		return nil
	case o.PolicyRules < 1 || o.PolicyRules > MaxPolicyRules:
		return optionErrorf("policy rules %d: want 1 to %d", o.PolicyRules, MaxPolicyRules)
	case o.Datapath == DatapathEBPF && o.Policy != ViaEBPFTC, o.Datapath == DatapathKernel && !byRules:
		return optionErrorf("policy %q: want %s with datapath ebpf, %s or %s with kernel", o.Policy, ViaEBPFTC, ViaIPTables, ViaNFTables)
	case byRules && o.Via != ViaNone:
		return optionErrorf("policy %s: not with the rules of services by %s", o.Policy, o.Via)
	case byRules && !takesPodDatapath(o.traits()) && !o.NetfilterCall:
		return optionErrorf("policy %s: packets on link %s pass no rules of the host", o.Policy, o.Link)
	}
	return nil
}

// allowRule allows TCP connections over IPv4 from some addresses to one port of pod-a. What no rule of the list allows is denied.
type allowRule struct {
	From netip.Prefix
	Port uint16
}

// allowed returns what may connect to pod-a at [PlainPort]: ranges of addresses that no host or pod has, and last pod-b.
func (l *Lab) allowed() []allowRule {
	var rules []allowRule
	first := otherBlocks.Addr().As4()
	for i := range l.Options.PolicyRules - 1 {
		at := netip.AddrFrom4([4]byte{first[0], first[1] + byte(i>>8), byte(i), 0})
		rules = append(rules, allowRule{From: netip.PrefixFrom(at, otherBlocks.Bits()), Port: PlainPort})
	}
	return append(rules, fromPodB(PlainPort))
}

// fromPodB is a rule that allows pod-b a port.
func fromPodB(port uint16) allowRule {
	return allowRule{From: netip.PrefixFrom(PodBIPs[0], PodBIPs[0].BitLen()), Port: port}
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

// ruleList is how a program's rules enforce a list. A change adds a rule behind the others, or removes it there.
type ruleList struct {
	program      []string                         // that reads the text
	begin, end   string                           // of the text
	head, foot   string                           // around the list's rules
	add          func(r allowRule) string         // to the end of a list without foot
	insert       func(at int, r allowRule) string // into a list
	remove       func(at int, r allowRule) string
	clear        string
	table        string
	first, chain string // the first rule of chain first counts packets of established connections, the last two of chain allow and deny
}

// ruleLists are the lists by option. That of iptables has the rules of kube-router, and of Calico without ipsets: established
// connections are accepted first, then the pod's chain has a rule for each of the list's, and one that drops. As Calico's Felix
// it writes a changed rule alone.
//
// That of nftables has what nftables offers for long lists: a verdict map leads to the pod's chain, and one set of ranges of
// addresses with protocol and port has all rules. Linux 6.12 looks up no meta l4proto among intervals.
var ruleLists = map[string]ruleList{
	ViaIPTables: {
		program: []string{"iptables-restore", "-w", "--noflush"}, begin: "*filter\n", end: "COMMIT\n",
		head: ":FORWARD ACCEPT [0:0]\n:POD-ALLOWLIST - [0:0]\n-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n" +
			"-A FORWARD -d " + PodAIPs[0].String() + " -j POD-ALLOWLIST\n",
		foot: "-A POD-ALLOWLIST -j DROP\n",
		add:  func(r allowRule) string { return "-A POD-ALLOWLIST " + r.iptables() },
		insert: func(at int, r allowRule) string {
			return fmt.Sprintf("-I POD-ALLOWLIST %d %s", at, r.iptables())
		},
		remove: func(at int, _ allowRule) string { return fmt.Sprintf("-D POD-ALLOWLIST %d\n", at) },
		clear:  "-F FORWARD\n-F POD-ALLOWLIST\n-X POD-ALLOWLIST\n",
		table:  "filter", first: "FORWARD", chain: "POD-ALLOWLIST",
	},
	ViaNFTables: {
		program: []string{"nft", "-f", "-"},
		head: `add table ip mustang-policy
add chain ip mustang-policy forward { type filter hook forward priority 0 ; }
add chain ip mustang-policy pod-allowlist
add map ip mustang-policy pods { type ipv4_addr : verdict ; }
add element ip mustang-policy pods { ` + PodAIPs[0].String() + ` : goto pod-allowlist }
add set ip mustang-policy allowlist { type ipv4_addr . inet_proto . inet_service ; flags interval ; }
add rule ip mustang-policy forward ct state established,related counter accept
add rule ip mustang-policy forward ip daddr vmap @pods
add rule ip mustang-policy pod-allowlist ip saddr . ip protocol . th dport @allowlist counter accept
add rule ip mustang-policy pod-allowlist counter drop
`,
		add:    func(r allowRule) string { return "add " + r.element() },
		insert: func(_ int, r allowRule) string { return "add " + r.element() },
		remove: func(_ int, r allowRule) string { return "delete " + r.element() },
		clear:  "delete table ip mustang-policy\n",
		table:  "mustang-policy", first: "forward", chain: "pod-allowlist",
	},
}

// iptables returns the match and the target of the rule.
func (r allowRule) iptables() string {
	return fmt.Sprintf("-s %s -p tcp -m tcp --dport %d -j ACCEPT\n", r.From, r.Port)
}

// element is the rule in the set of nftables.
func (r allowRule) element() string {
	return fmt.Sprintf("element ip mustang-policy allowlist { %s . tcp . %d }\n", r.From, r.Port)
}

// applyPolicy makes a list the network policy of the lab: as a whole in a datapath, else by the text that rules return.
func (l *Lab) applyPolicy(ctx context.Context, list []allowRule, rules func(ruleList) string) error {
	if l.datapath != nil {
		_, err := l.datapath.Policies().Apply(ctx, owner, policies.Set{Snapshot: snapshot(list)})
		return err
	}
	r := ruleLists[l.Options.Policy]
	err := l.namespaces[Host].Do(func() error { return feed(r.begin+rules(r)+r.end, r.program[0], r.program[1:]...) })
	if err != nil {
		return fmt.Errorf("allow list with %w", err)
	}
	return nil
}

// WritePolicy writes the network policy of a lab that has none, by the lab's implementation.
func (l *Lab) WritePolicy(ctx context.Context) error {
	list := l.allowed()
	return l.applyPolicy(ctx, list, func(r ruleList) string {
		var text strings.Builder
		text.WriteString(r.head)
		for _, rule := range list {
			text.WriteString(r.add(rule))
		}
		return text.String() + r.foot
	})
}

// ClearPolicy removes the network policy of a lab.
func (l *Lab) ClearPolicy(ctx context.Context) error {
	return l.applyPolicy(ctx, nil, func(r ruleList) string { return r.clear })
}

// AllowDenied adds a rule to a lab's network policy that allows pod-b the [DeniedPort], or removes it.
func (l *Lab) AllowDenied(ctx context.Context, allow bool) error {
	list, rule := l.allowed(), fromPodB(DeniedPort)
	at := len(list) + 1
	if !allow {
		return l.applyPolicy(ctx, list, func(r ruleList) string { return r.remove(at, rule) })
	}
	return l.applyPolicy(ctx, append(list, rule), func(r ruleList) string { return r.insert(at, rule) })
}

// RuleCounters returns the packets that the rules of a network policy have counted, by what they do; nil if none enforces
// one: "established" of connections that were allowed before, "allowed" and "denied".
func (l *Lab) RuleCounters() (map[string]uint64, error) {
	list, ok := ruleLists[l.Options.Policy]
	if !ok {
		return nil, nil
	}
	conn, err := nftables.New(nftables.WithNetNSFd(l.namespaces[Host].FD()))
	if err != nil {
		return nil, fmt.Errorf("counters of table %s: %w", list.table, err)
	}
	table := &nftables.Table{Family: nftables.TableFamilyIPv4, Name: list.table}
	var counts [2][]uint64
	for i, chain := range []string{list.first, list.chain} {
		rules, err := conn.GetRules(table, &nftables.Chain{Name: chain, Table: table})
		if err != nil {
			return nil, fmt.Errorf("counters of table %s, chain %s: %w", list.table, chain, err)
		}
		for _, r := range rules {
			counts[i] = append(counts[i], counted(r))
		}
	}
	first, second := counts[0], counts[1]
	if len(first) < 1 || len(second) < 2 {
		return nil, fmt.Errorf("table %s has %d and %d rules", list.table, len(first), len(second))
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

// Knock sends the first packet of a connection from pod-b to the [DeniedPort] of pod-a, if a network policy denies it.
func (l *Lab) Knock() error {
	if l.Options.Policy == "" {
		return nil
	}
	return l.namespaces[PodB].Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		_ = unix.Connect(fd, &unix.SockaddrInet4{Port: DeniedPort, Addr: PodAIPs[0].As4()}) // whether it is denied, counters tell
		return nil
	})
}
