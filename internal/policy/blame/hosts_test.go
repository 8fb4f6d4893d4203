// SPDX-License-Identifier: Apache-2.0

package blame

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"mustang/internal/policy"
	"mustang/internal/policy/policytest"
)

// random makes snapshots of a few labels, namespaces, ports and blocks, so that much is alike.
type random struct{ *rand.Rand }

func (r random) label() map[string]string {
	return map[string]string{[]string{"a", "b"}[r.IntN(2)]: fmt.Sprint(r.IntN(3))}
}

func (r random) selector() policy.Selector {
	switch r.IntN(4) {
	case 0:
		return policy.Selector{}
	case 1:
		return policy.Selector{Labels: r.label()}
	case 2:
		return policy.Selector{Requirements: []policy.Requirement{{Key: "a", Operator: []string{"Exists", "DoesNotExist"}[r.IntN(2)]}}}
	}
	return policy.Selector{Requirements: []policy.Requirement{{Key: "b", Operator: []string{"In", "NotIn"}[r.IntN(2)], Values: []string{"0", "1"}}}}
}

func (r random) peer() policy.Peer {
	switch r.IntN(6) {
	case 0:
		s := r.selector()
		return policy.Peer{Nodes: &s}
	case 1, 2:
		at := netip.AddrFrom4([4]byte{10, byte(r.IntN(4)), byte(r.IntN(4)), 0})
		b := &policy.Block{CIDR: netip.PrefixFrom(at, []int{8, 14, 16, 24}[r.IntN(4)]).Masked()}
		if r.IntN(2) == 0 {
			b.Except = []netip.Prefix{netip.PrefixFrom(b.CIDR.Addr(), b.CIDR.Bits()+r.IntN(6)+1)}
		}
		return policy.Peer{Block: b}
	}
	s := policy.PodSelector{Namespaces: r.selector(), Pods: r.selector()}
	if r.IntN(3) == 0 {
		s.Namespaces = policytest.InNamespace(fmt.Sprint("n", r.IntN(4))).Namespaces
	}
	return policy.Peer{Pods: &s}
}

func (r random) snapshot() policy.Snapshot {
	s := policy.Snapshot{Node: "node0"}
	for i := range 4 {
		s.Namespaces = append(s.Namespaces, policy.Namespace{Name: fmt.Sprint("n", i), Labels: r.label()})
		s.Nodes = append(s.Nodes, policy.Node{
			Name: fmt.Sprint("node", i), Labels: r.label(), Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 9, byte(i)}), netip.AddrFrom4([4]byte{10, 3, 9, byte(i)})},
		})
	}
	for i := range 200 {
		p := policy.Pod{
			Namespace: fmt.Sprint("n", r.IntN(4)), Name: fmt.Sprint(i), Labels: r.label(), Node: fmt.Sprint("node", min(i/10, 3)),
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(r.IntN(4)), byte(r.IntN(4)), byte(i)})},
		}
		if r.IntN(4) == 0 {
			p.Ports = []policy.NamedPort{{Name: []string{"web", "db"}[r.IntN(2)], Protocol: 6, Port: uint16(80 + r.IntN(2))}}
		}
		s.Pods = append(s.Pods, p)
	}
	for i := range 12 {
		p := policy.Policy{Tier: policy.Namespaced, Namespace: fmt.Sprint("n", r.IntN(4)), Name: fmt.Sprint(i), IsolatesIngress: r.IntN(2) == 0, IsolatesEgress: true}
		if p.Subject = policytest.InNamespace(p.Namespace); i%3 == 0 {
			p.Subject.Pods = r.selector()
		}
		rule := policy.Rule{Action: policy.Accept, Peers: []policy.Peer{r.peer(), r.peer()}}
		if r.IntN(3) == 0 {
			rule.Ports = []policy.Port{{Protocol: 6, Name: "web"}}
		}
		if i == 11 {
			p.Tier, p.Namespace, p.IsolatesIngress, p.IsolatesEgress = policy.Admin, "", false, false
		}
		p.Ingress, p.Egress = []policy.Rule{rule}, []policy.Rule{rule}
		s.Policies = append(s.Policies, p)
	}
	return s
}

// TestHosts compares the hosts that are told apart with the identities of a compilation, of all policies and of those of each namespace; and what
// these cost beside one host of each with what they cost beside all.
func TestHosts(t *testing.T) {
	for seed := range uint64(100) {
		s := random{rand.New(rand.NewPCG(seed, 0))}.snapshot()
		all := rulesOf(&s)
		h := hostsOf(&s, all.policies)
		if got, want := len(h.apart(func(*trait) bool { return true })), identities(t, s); got != want {
			t.Errorf("seed %d: %d are apart, of %d identities", seed, got, want)
		}
		for i, name := range all.names {
			who := int32(i)
			kinds := h.apart(func(tr *trait) bool { return tr.asks(who) })
			beside := s
			beside.Policies = all.policies[i]
			own := h.only(&s, name, kinds)
			own.Policies = all.policies[i]
			if got, want := len(kinds), identities(t, beside); got != want {
				t.Errorf("seed %d, %q: %d are apart, of %d identities", seed, name, got, want)
			}
			if got, want := compiled(t, own), compiled(t, beside); got.Cost() != want.Cost() || len(got.Rows().Verdicts) != len(want.Rows().Verdicts) {
				t.Errorf("seed %d, %q: it costs %+v, not %+v", seed, name, got.Cost(), want.Cost())
			}
		}
	}
}

func compiled(t *testing.T, s policy.Snapshot) *policy.Compiler {
	t.Helper()
	c := policy.NewCompiler(policy.Rows{})
	if _, err := c.Change(s); err != nil {
		t.Fatal(err)
	}
	return c
}

// identities returns how many pods and nodes have.
func identities(t *testing.T, s policy.Snapshot) int {
	t.Helper()
	rows, found := compiled(t, s).Rows().Addresses, map[uint32]bool{}
	add := func(addresses []netip.Addr) {
		for _, a := range addresses {
			if i, ok := rows[netip.PrefixFrom(netip.AddrFrom16(a.As16()), 128)]; ok {
				found[i] = true
			} else {
				t.Fatalf("%s has no identity", a)
			}
		}
	}
	for _, n := range s.Nodes {
		add(n.Addresses)
	}
	for _, p := range s.Pods {
		add(p.Addresses)
	}
	return len(found)
}

// TestFarPodsCostLittle compiles the policies of each namespace beside few pods, of a cluster of many that another namespace tells apart.
func TestFarPodsCostLittle(t *testing.T) {
	s := policytest.On([]policy.Policy{policytest.Internet(policy.Namespaced, "shop", "", 1)}, map[string][]string{"shop": {"a"}, "tenant": {"b"}})
	apart := policy.Requirement{Key: "app", Operator: "In"}
	for i := range 20_000 {
		app := fmt.Sprintf("far%05d", i)
		apart.Values = append(apart.Values, app)
		s.Pods = append(s.Pods, policy.Pod{
			Namespace: "away", Name: app, Labels: map[string]string{"app": app}, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)})},
		})
	}
	tenant := policytest.Addresses("tenant", "apart", 0, 1)
	tenant.Ingress[0].Peers = []policy.Peer{{Pods: &policy.PodSelector{Pods: policy.Selector{Requirements: []policy.Requirement{apart}}}}}
	s.Policies = append(s.Policies, tenant)
	r := rulesOf(&s)
	h := hostsOf(&s, r.policies)
	for i, name := range r.names {
		who := int32(i)
		pods := len(h.only(&s, name, h.apart(func(t *trait) bool { return t.asks(who) })).Pods)
		if few := pods <= 3; few != (name == "shop") {
			t.Errorf("%s: %d pods", name, pods)
		}
	}
}
