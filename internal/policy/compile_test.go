// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"mustang/internal/testkit"
)

func TestEqualPodsShareIdentityAndSets(t *testing.T) {
	s := Snapshot{Policies: []Policy{{Tier: Namespaced, Namespace: "a", Name: "deny", IsolatesIngress: true}}}
	for n := range 3 {
		s.Pods = append(s.Pods, Pod{
			Namespace: "a", Name: fmt.Sprint(n), Labels: map[string]string{"app": "web"},
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(n)})},
		})
	}
	rows := testkit.Must(Compile(s, Rows{}))(t)
	identities, sets := slices.Collect(maps.Values(rows.Addresses)), slices.Collect(maps.Values(rows.Endpoints))
	testkit.Check(t, len(slices.Compact(identities)) == 1 && len(slices.Compact(sets)) == 1 && len(rows.Verdicts) == 1,
		"identities %v, sets %v, %d verdicts", identities, sets, len(rows.Verdicts))
}

func TestBadSnapshot(t *testing.T) {
	pod := func(name, address string) Pod {
		return Pod{Namespace: "a", Name: name, Addresses: []netip.Addr{netip.MustParseAddr(address)}}
	}
	bad := func(p Policy) Snapshot {
		p.Tier, p.Namespace, p.Name = Namespaced, "a", "p"
		return Snapshot{Policies: []Policy{p}}
	}
	for want, s := range map[string]Snapshot{
		"pod a/y: address ::ffff:10.0.0.1 also used by pod a/x": {Pods: []Pod{pod("x", "10.0.0.1"), pod("y",
			"::ffff:10.0.0.1")}},
		"pod a/x: address 10.0.0.1 also used by node n": {
			Nodes: []Node{{Name: "n", Addresses: pod("", "10.0.0.1").Addresses}}, Pods: []Pod{pod("x", "10.0.0.1")},
		},
		"ipBlock.except[0]: ::ffff:10.0.0.0/104 is not": bad(Policy{Ingress: []Rule{{Action: Accept, Peers: []Peer{{
			Block: &Block{CIDR: netip.MustParsePrefix("::/0"), Except: []netip.Prefix{
				netip.MustParsePrefix("::ffff:10.0.0.0/104")}}}}}}}),
		"spec.ingress[0].action: unknown in this tier": bad(Policy{Ingress: []Rule{{Action: Deny}}}),
		"spec.egress[0].ports[0].protocol: missing":    bad(Policy{Egress: []Rule{{Ports: []Port{{First: 1}}}}}),
		"spec.egress[0].to[0].peer: want exactly one":  bad(Policy{Egress: []Rule{{Peers: []Peer{{}}}}}),
		"ports[0].endPort: 1 is less than port 2": bad(Policy{Egress: []Rule{{Ports: []Port{{Protocol: 6, First: 2,
			Last: 1}}}}}),
		"podSelector.matchExpressions[0]: operator: \"x\"": bad(Policy{Subject: PodSelector{Pods: Selector{
			Requirements: []Requirement{{Key: "a", Operator: "x"}}}}}),
	} {
		_, err := Compile(s, Rows{})
		testkit.Check(t, err != nil && strings.Contains(err.Error(), want), "got %v, want %s", err, want)
	}
}

// TestOthersPoliciesCostNothing compiles a policy that selects no pod of this node: its ranges add no rows.
func TestOthersPoliciesCostNothing(t *testing.T) {
	block := &Block{CIDR: netip.MustParsePrefix("10.9.0.0/16")}
	s := Snapshot{
		Node: "here",
		Pods: []Pod{{Namespace: "shop", Name: "web", Node: "here", Addresses: []netip.Addr{netip.MustParseAddr("10.1.0.1")}}},
		Policies: []Policy{{
			Tier: Namespaced, Namespace: "other", Name: "big", IsolatesIngress: true,
			Subject: PodSelector{Namespaces: Selector{Labels: map[string]string{NamespaceLabel: "other"}}},
			Ingress: []Rule{{Peers: []Peer{{Block: block}}}},
		}},
	}
	rows := testkit.Must(Compile(s, Rows{}))(t)
	_, ok := rows.Addresses[mappedPrefix(block.CIDR)]
	testkit.Check(t, !ok && len(rows.Verdicts) == 0, "there are %v", rows)
}

// TestPoliciesOfOneName has policies of several sources with one name and different rules: all are in force, in any
// order. A file may not have them.
func TestPoliciesOfOneName(t *testing.T) {
	node := Node{Name: "n", Addresses: []netip.Addr{netip.MustParseAddr("10.0.9.9"), netip.MustParseAddr("10.0.9.9")}}
	s := Snapshot{Nodes: []Node{node}}
	for i, app := range []string{"server", "x", "y", "z"} {
		s.Pods = append(s.Pods, Pod{
			Namespace: "a", Name: app, Labels: map[string]string{"app": app},
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})},
		})
	}
	peers := func(app string) []Peer {
		return []Peer{{Pods: &PodSelector{Pods: Selector{Labels: map[string]string{"app": app}}}}}
	}
	for _, app := range []string{"x", "y"} {
		s.Policies = append(s.Policies, Policy{Tier: Namespaced, Namespace: "a", Name: "same", IsolatesIngress: true,
			Ingress: []Rule{{Peers: peers(app)}}})
	}
	for _, action := range []Action{Accept, Deny} {
		s.Policies = append(s.Policies, Policy{Tier: Admin, Name: "same",
			Egress: []Rule{{Action: action, Peers: peers("z")}}})
	}
	rows := testkit.Must(Compile(s, Rows{}))(t)
	for _, p := range s.Pods {
		f := Flow{p.Addresses[0], s.Pods[0].Addresses[0], 6, 80}
		_, got := rows.lookup(f, nil)
		testkit.Check(t, got.Allow == (p.Name != "z"), "%s: %v", p.Name, got)
	}
	v := testkit.Must(newView(&s))(t)
	for _, from := range s.Pods {
		for _, to := range s.Pods[:2] {
			f := Flow{from.Addresses[0], to.Addresses[0], 6, 80}
			want := v.decide(f, Ingress)
			_, got := rows.lookup(f, s.Rules(rows.Numbers))
			testkit.Check(t, got == want, "%v: %v, want %v", f, got, want)
		}
	}
	slices.Reverse(s.Policies)
	again, err := Compile(s, rows)
	d := Diff(rows, again)
	testkit.Check(t, err == nil && d.Len() == 0, "in another order rows differ: %+v, %v", d, err)
	err = s.Validate()
	testkit.Check(t, err != nil && strings.Contains(err.Error(), "is there twice"), "one file: %v", err)
}

// TestOwnNode evaluates traffic between a pod and its node. A NetworkPolicy that isolates the pod does not affect its
// node; the other tiers do.
func TestOwnNode(t *testing.T) {
	pod, node := netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("192.168.0.1")
	nodes := []Rule{{Action: Deny, Peers: []Peer{{Nodes: &Selector{}}}}}
	admin, baseline := Policy{Tier: Admin, Name: "admin", Egress: nodes}, Policy{Tier: Baseline, Name: "baseline",
		Egress: nodes}
	isolated := Policy{Tier: Namespaced, Namespace: "shop", Name: "isolated", IsolatesEgress: true}
	judged := isolated
	judged.JudgesNode = true
	for name, tt := range map[string]struct {
		policies []Policy
		allow    bool
		reason   Reason
	}{
		"none":                        {nil, true, Default},
		"admin":                       {[]Policy{admin, isolated}, false, ByRule},
		"isolated":                    {[]Policy{isolated}, true, OwnNode},
		"isolated, with --judge-node": {[]Policy{judged}, false, DefaultDeny},
		"baseline":                    {[]Policy{baseline}, false, ByRule},
		"isolated, then baseline":     {[]Policy{isolated, baseline}, true, OwnNode},
	} {
		s := Snapshot{
			Node: "here", Nodes: []Node{{Name: "here", Addresses: []netip.Addr{node}}}, Policies: tt.policies,
			Pods: []Pod{{Namespace: "shop", Name: "web", Node: "here", Addresses: []netip.Addr{pod}}},
		}
		rows := testkit.Must(Compile(s, Rows{}))(t)
		got, _ := rows.lookup(Flow{Source: pod, Destination: node, Protocol: 6, Port: 80}, s.Rules(rows.Numbers))
		want := testkit.Must(newView(&s))(t).decide(Flow{Source: pod, Destination: node, Protocol: 6, Port: 80}, Egress)
		testkit.Check(t, got.Allow == tt.allow && got.Origin.Reason == tt.reason && got == want,
			"%s: the rows decide %+v, Explain %+v; want %t by reason %v", name, got, want, tt.allow, tt.reason)
	}
}
