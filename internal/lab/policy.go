// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"

	"mustang/internal/datapath/policies"
	"mustang/internal/policy"
	"mustang/internal/service"
)

// otherBlocks is the first range that rules before the last one allow. No place has its addresses.
var otherBlocks = netip.MustParsePrefix("10.128.0.0/24")

// allowed is the list for [PlainPort] of pod-a: ranges that no host or pod has, and last pod-b.
func (l *Lab) allowed() (rules []allowRule) {
	first := otherBlocks.Addr().As4()
	for i := range l.Options.PolicyRules - 1 {
		at := netip.AddrFrom4([4]byte{first[0], first[1] + byte(i>>8), byte(i), 0})
		rules = append(rules, allowRule{From: netip.PrefixFrom(at, otherBlocks.Bits()), Port: PlainPort})
	}
	return append(rules, fromPodB(PlainPort))
}

func fromPodB(port uint16) allowRule {
	return allowRule{From: netip.PrefixFrom(PodBIPs[0], PodBIPs[0].BitLen()), Port: port}
}

// setPolicy changes the network policy via the lab's implementation. The datapath writes a list as a whole. The
// others take a text of iptables-restore or a transaction of nftables.
func (l *Lab) setPolicy(ctx context.Context, rules []allowRule, text string, fill func(*knftables.Transaction)) error {
	host := l.namespaces[Host]
	var err error
	switch l.Options.Policy {
	case ViaIPTables:
		err = feed(host, "*filter\n"+text+"COMMIT\n", "iptables-restore", "-w", "--noflush")
	case ViaNFTables:
		err = host.Do(func() (err error) {
			if l.listTable == nil {
				if l.listTable, err = knftables.New(knftables.IPv4Family, listTable); err != nil {
					return err
				}
			}
			tx := l.listTable.NewTransaction()
			fill(tx)
			return l.listTable.Run(ctx, tx)
		})
	default:
		_, err = l.datapath.Policies().Apply(ctx, owner, policies.Set{Snapshot: snapshot(rules)})
	}
	if err != nil {
		return fmt.Errorf("allow list with %s: %w", l.Options.Policy, err)
	}
	return nil
}

// WritePolicy writes the first network policy of a lab, via the lab's implementation.
func (l *Lab) WritePolicy(ctx context.Context) error {
	rules, text := l.allowed(), ""
	if l.Options.Policy == ViaIPTables {
		text = iptablesList(rules)
	}
	return l.setPolicy(ctx, rules, text, func(tx *knftables.Transaction) { addList(tx, rules) })
}

// ClearPolicy removes the network policy of a lab.
func (l *Lab) ClearPolicy(ctx context.Context) error {
	return l.setPolicy(ctx, nil, "-F FORWARD\n-F POD-ALLOWLIST\n-X POD-ALLOWLIST\n",
		func(tx *knftables.Transaction) { tx.Delete(&knftables.Table{}) })
}

// AllowDenied adds a rule to a lab's network policy that allows pod-b the [DeniedPort], or removes it. As Calico's
// Felix, iptables and nftables write the changed rule alone.
func (l *Lab) AllowDenied(ctx context.Context, allow bool) error {
	rules, changed := l.allowed(), fromPodB(DeniedPort)
	if !allow {
		return l.setPolicy(ctx, rules, fmt.Sprintf("-D POD-ALLOWLIST %d\n", len(rules)+1),
			func(tx *knftables.Transaction) { tx.Delete(changed.element()) })
	}
	text := fmt.Sprintf("-I POD-ALLOWLIST %d %s", len(rules)+1, changed.iptables())
	return l.setPolicy(ctx, append(rules, changed), text,
		func(tx *knftables.Transaction) { tx.Add(changed.element()) })
}

// RuleCounters returns the packets that the rules of a network policy have counted, by what they do; nil without rules.
func (l *Lab) RuleCounters() (map[string]uint64, error) {
	list, ok := listings[l.Options.Policy]
	if !ok {
		return nil, nil
	}
	text, err := output(l.namespaces[Host], "", list.program, list.args...)
	if err != nil {
		return nil, err
	}
	rules := list.packets.FindAllStringSubmatch(text, -1)
	last := len(rules) - 1
	if last < 2 {
		return nil, fmt.Errorf("%s prints %d rules of a list", list.program, len(rules))
	}
	count := func(i int) uint64 {
		n, _ := strconv.ParseUint(rules[i][1], 10, 64) // it is digits
		return n
	}
	return map[string]uint64{"established": count(0), "allowed": count(last - 1), "denied": count(last)}, nil
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
		// counters show whether it is denied
		_ = unix.Connect(fd, &unix.SockaddrInet4{Port: DeniedPort, Addr: PodAIPs[0].As4()})
		return nil
	})
}

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

// listings print the rules of an allow list: first that for established connections, last the two that allow and deny.
// Only iptables shows the rules of iptables-legacy.
var listings = map[string]struct {
	program string
	args    []string
	packets *regexp.Regexp // of a rule
}{
	ViaIPTables: {"iptables-save", []string{"-c", "-t", "filter"}, regexp.MustCompile(`(?m)^\[(\d+):`)},
	ViaNFTables: {"nft", []string{"-t", "list", "table", listTable}, regexp.MustCompile(`counter packets (\d+) `)},
}
