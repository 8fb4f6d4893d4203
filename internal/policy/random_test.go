// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"mustang/internal/service"
	"mustang/internal/testkit"
)

// generator makes random snapshots from few labels, addresses and ports, so that they meet often.
type generator struct{ *rand.Rand }

func one[T any](g generator, of ...T) T { return of[g.IntN(len(of))] }

func some[T any](g generator, n int, of func() T) []T {
	var out []T
	for range g.IntN(n + 1) {
		out = append(out, of())
	}
	return out
}

func (g generator) labels() map[string]string {
	out := map[string]string{}
	for range g.IntN(3) {
		out[one(g, "app", "tier")] = one(g, "a", "b")
	}
	return out
}

func (g generator) selector() Selector {
	s := Selector{Labels: map[string]string{}}
	switch g.IntN(5) {
	case 0, 1:
		s.Labels = g.labels()
	case 2:
		r := Requirement{Key: one(g, "app", "tier"), Operator: one(g, "In", "NotIn", "Exists", "DoesNotExist")}
		if r.Operator == "In" || r.Operator == "NotIn" {
			r.Values = []string{one(g, "a", "b", "c")}
		}
		s.Requirements = append(s.Requirements, r)
	case 3:
		s.Labels[NamespaceLabel] = one(g, "n0", "n1", "n2")
	}
	return s
}

func (g generator) protocol() service.Protocol {
	return one(g, service.TCP, service.TCP, service.UDP, service.SCTP)
}

func (g generator) port() Port {
	p := Port{Protocol: g.protocol()}
	switch g.IntN(4) {
	case 0:
		p.Name = one(g, "web", "dns")
	case 1:
		p.Last = 65535
	case 2:
		p.First = one[uint16](g, 80, 1, 79)
		p.Last = p.First + one[uint16](g, 1, 2, 363, 1000)
	default:
		p.First = one[uint16](g, 53, 80, 81, 443)
		p.Last = p.First
	}
	return p
}

func (g generator) block() *Block {
	if g.IntN(3) == 0 {
		return &Block{CIDR: netip.MustParsePrefix(one(g, "::/0", "fd00::/64", "fd00::/126", "fd00::1/128", "2001:db8::/32"))}
	}
	b := &Block{CIDR: netip.MustParsePrefix(one(g, "0.0.0.0/0", "10.0.0.0/24", "10.0.0.0/29", "10.0.0.1/32",
		"192.0.2.0/24"))}
	for _, e := range []string{"10.0.0.0/29", "10.0.0.4/30", "192.0.2.128/25", "10.0.0.2/32"} {
		if p := netip.MustParsePrefix(e); g.IntN(3) == 0 && b.CIDR.Contains(p.Addr()) && b.CIDR.Bits() < p.Bits() {
			b.Except = append(b.Except, p)
		}
	}
	return b
}

func (g generator) rule(t Tier) Rule {
	r := Rule{Ports: some(g, 2, g.port), Peers: some(g, 2, func() Peer {
		switch g.IntN(7) {
		case 0, 1:
			return Peer{Block: g.block()}
		case 2:
			s := g.selector()
			return Peer{Nodes: &s}
		}
		return Peer{Pods: &PodSelector{g.selector(), g.selector()}}
	})}
	if t != Namespaced {
		r.Action = one(g, Accept, Deny, Pass)
		if g.IntN(3) == 0 {
			r.Ports = append(r.Ports, Port{Name: "web"})
		}
	}
	return r
}

func (g generator) policy(number int) Policy {
	p := Policy{Tier: one(g, Namespaced, Namespaced, Admin, Baseline), Name: fmt.Sprintf("p%d", number)}
	p.Subject = PodSelector{g.selector(), g.selector()}
	if p.Tier == Namespaced {
		p.Namespace = one(g, "n0", "n1", "n2")
		p.Subject.Namespaces = Selector{Labels: map[string]string{NamespaceLabel: p.Namespace}}
		p.IsolatesEgress, p.IsolatesIngress, p.JudgesNode = g.IntN(2) == 0, g.IntN(2) == 0, g.IntN(4) == 0
	} else {
		p.Priority = uint16(g.IntN(3))
	}
	p.Ingress = some(g, 3, func() Rule { return g.rule(p.Tier) })
	p.Egress = some(g, 3, func() Rule { return g.rule(p.Tier) })
	return p
}

func (g generator) policies() (out []Policy) {
	for n := range g.IntN(7) {
		out = append(out, g.policy(n))
	}
	return out
}

func (g generator) snapshot() Snapshot {
	s := Snapshot{Node: "m0", Policies: g.policies()}
	for n := range 2 {
		s.Nodes = append(s.Nodes, Node{fmt.Sprintf("m%d", n), g.labels(), []netip.Addr{
			netip.AddrFrom4([4]byte{10, 0, 1, byte(n)}), netip.MustParseAddr(fmt.Sprintf("fd00:0:0:1::%d", n)),
		}})
	}
	for n := range 2 { // the third is not listed
		s.Namespaces = append(s.Namespaces, Namespace{fmt.Sprintf("n%d", n), g.labels()})
	}
	for n := range 7 {
		p := Pod{
			Namespace: one(g, "n0", "n1", "n2"), Name: fmt.Sprintf("pod%d", n), Labels: g.labels(),
			Node: one(g, "m0", "m0", "m1"),
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(n)}),
				netip.MustParseAddr(fmt.Sprintf("fd00::%d", n))},
			Ports: some(g, 2, func() NamedPort {
				return NamedPort{one(g, "web", "dns"), g.protocol(), one[uint16](g, 53, 80, 8080)}
			}),
		}
		if g.IntN(10) == 0 {
			p.HostNetwork, p.Addresses = true, s.Nodes[0].Addresses
		}
		s.Pods = append(s.Pods, p)
	}
	return s
}

// flows returns all flows between pods, nodes and others that a generator's policies distinguish.
func flows(s *Snapshot, yield func(Flow) bool) {
	var v4, v6 []netip.Addr
	for _, a := range []string{"192.0.2.1", "192.0.2.200", "10.0.0.9", "8.8.8.8", "2001:db8::1", "2001:db9::1",
		"fd00::3:1"} {
		if a := netip.MustParseAddr(a); a.Is4() {
			v4 = append(v4, a)
		} else {
			v6 = append(v6, a)
		}
	}
	for _, n := range s.Nodes {
		v4, v6 = append(v4, n.Addresses[0]), append(v6, n.Addresses[1])
	}
	for _, p := range s.Pods {
		if !p.HostNetwork {
			v4, v6 = append(v4, p.Addresses[0]), append(v6, p.Addresses[1])
		}
	}
	for _, addresses := range [][]netip.Addr{v4, v6} {
		for _, a := range addresses {
			for _, b := range addresses {
				for _, protocol := range []service.Protocol{service.TCP, service.UDP, service.SCTP, 1} {
					for _, port := range []uint16{0, 53, 79, 80, 81, 442, 443, 8080} {
						if !yield(Flow{a, b, protocol, port}) {
							return
						}
					}
				}
			}
		}
	}
}

// compareAll compares Lookup with Explain, in the directions that the snapshot's node enforces.
func compareAll(t *testing.T, s *Snapshot, rows *Rows) (decisions map[Origin]int) {
	t.Helper()
	v, rules := testkit.Must(newView(s))(t), s.Rules(rows.Numbers)
	decisions = map[Origin]int{}
	enforces := enforced(v, s.Node)
	for f := range func(yield func(Flow) bool) { flows(s, yield) } {
		if !enforces[f.Source] && !enforces[f.Destination] {
			continue
		}
		egress, ingress := rows.lookup(f, rules)
		for _, c := range [...]struct {
			d       Direction
			subject netip.Addr
			got     Decision
		}{{Egress, f.Source, egress}, {Ingress, f.Destination, ingress}} {
			if !enforces[c.subject] {
				continue
			}
			want := v.decide(f, c.d)
			decisions[Origin{Reason: want.Origin.Reason, Tier: want.Origin.Tier, Direction: c.d}]++
			if c.got != want {
				t.Fatalf("%v %s: Lookup says %v (%s), Explain %v (%s)\n%s",
					f, c.d, c.got.Allow, c.got.Origin, want.Allow, want.Origin, text(s))
			}
		}
	}
	return decisions
}

func text(s *Snapshot) []byte {
	data, _ := json.MarshalIndent(s, "", " ")
	return data
}

func TestLookupDecidesAsDefined(t *testing.T) {
	all, left := map[Origin]int{}, 0
	for seed := range uint64(150) {
		s := generator{rand.New(rand.NewPCG(seed, 1))}.snapshot()
		for _, node := range []string{"m0", "m1"} {
			s.Node = node
			known := peered(&s)
			left += len(s.Pods) - len(known.Pods)
			rows, err := Compile(known, Rows{})
			testkit.Require(t, err == nil, "seed %d: %v", seed, err)
			for o, n := range compareAll(t, &s, &rows) {
				all[o] += n
			}
			f := Flow{s.Pods[0].Addresses[0], s.Pods[1].Addresses[0], service.TCP, 80}
			v := testkit.Must(newView(&s))(t)
			egress, ingress := v.decide(f, Egress), v.decide(f, Ingress)
			if e, i, err := Explain(s, f); err != nil || e != egress || i != ingress {
				t.Fatalf("seed %d: Explain says %v, %v, %v; want %v, %v", seed, e, i, err, egress, ingress)
			}
		}
	}
	testkit.Check(t, left > 100, "%d pods were left out", left)
	for _, d := range []Direction{Egress, Ingress} { // the generator reached what it is for
		for _, o := range []Origin{
			{Reason: Default}, {Reason: ToItself}, {Reason: OwnNode}, {Reason: DefaultDeny, Tier: Namespaced},
			{Reason: ByRule, Tier: Admin}, {Reason: ByRule, Tier: Namespaced}, {Reason: ByRule, Tier: Baseline},
		} {
			if o.Direction = d; all[o] < 100 {
				t.Errorf("%s by %d of tier %s: %d decisions", d, o.Reason, o.Tier, all[o])
			}
		}
	}
}

func FuzzLookup(f *testing.F) {
	f.Add(uint64(1), uint64(2))
	f.Fuzz(func(t *testing.T, a, b uint64) {
		g := generator{rand.New(rand.NewPCG(a, b))}
		s := g.snapshot()
		rows := testkit.Must(Compile(s, Rows{}))(t)
		compareAll(t, &s, &rows)
	})
}

// write applies changes to rows in their order, and calls a function after each map that they change.
func write(rows *Rows, c Changes, after func()) {
	put(rows.Numbers, c.Numbers, after)
	put(rows.Ports, c.Ports, after)
	put(rows.Verdicts, c.Verdicts, after)
	put(rows.Addresses, c.Addresses, after)
	put(rows.Endpoints, c.Endpoints, after)
	remove(rows.Endpoints, c.Endpoints, after)
	remove(rows.Addresses, c.Addresses, after)
	remove(rows.Verdicts, c.Verdicts, after)
	remove(rows.Ports, c.Ports, after)
	remove(rows.Numbers, c.Numbers, after)
}

func put[K, V comparable](m map[K]V, c Change[K, V], after func()) {
	if maps.Copy(m, c.Put); len(c.Put) > 0 {
		after()
	}
}

func remove[K, V comparable](m map[K]V, c Change[K, V], after func()) {
	for _, k := range c.Delete {
		delete(m, k)
	}
	if len(c.Delete) > 0 {
		after()
	}
}

func clone(r Rows) Rows {
	return Rows{
		maps.Clone(r.Addresses), maps.Clone(r.Endpoints), maps.Clone(r.Verdicts),
		maps.Clone(r.Ports), maps.Clone(r.Numbers),
	}
}

// TestChangeOfPoliciesHasNoGap: after each map that is written, each verdict is the old one or the new one.
func TestChangeOfPoliciesHasNoGap(t *testing.T) {
	for seed := range uint64(testkit.Repeats(60, 1000)) {
		g := generator{rand.New(rand.NewPCG(seed, 2))}
		s := g.snapshot()
		rows := testkit.Must(Compile(s, Rows{}))(t)
		old, _ := newView(&s)
		before := s
		s.Previous, s.Policies = &before, g.policies()
		if len(before.Policies) > 0 { // some stay
			s.Policies = append(slices.DeleteFunc(s.Policies, func(p Policy) bool { return p.Name == before.Policies[0].Name }),
				before.Policies[0])
		}
		if len(before.Policies) > 1 && seed%2 == 0 { // or only one changes
			s.Policies = slices.Clone(before.Policies)
			s.Policies[0].Ingress = g.policy(0).Ingress
			if s.Policies[0].Tier == Namespaced {
				s.Policies[0].Ingress = append([]Rule{g.rule(Namespaced)}, before.Policies[0].Ingress...)
			}
		}
		fresh, err := newView(&s)
		if err != nil { // Deny in a NetworkPolicy
			continue
		}
		type verdict struct {
			flow     Flow
			d        Direction
			old, new Decision
		}
		var verdicts []verdict
		enforces := enforced(old, s.Node)
		for f := range func(yield func(Flow) bool) { flows(&s, yield) } {
			if f.Source.Is6() || f.Port%2 == 1 && f.Port != 53 { // fewer, for time
				continue
			}
			for d, subject := range [...]netip.Addr{Egress: f.Source, Ingress: f.Destination} {
				if d := Direction(d); enforces[subject] {
					verdicts = append(verdicts, verdict{f, d, old.decide(f, d), fresh.decide(f, d)})
				}
			}
		}
		step := 0
		check := func() {
			step++
			both := Snapshot{Policies: slices.Concat(before.Policies, s.Policies)}
			rules := both.Rules(rows.Numbers)
			for _, v := range verdicts {
				var got [2]Decision
				got[Egress], got[Ingress] = rows.lookup(v.flow, rules)
				if got := got[v.d]; got != v.old && got != v.new {
					t.Fatalf("seed %d, step %d: %v %s: %v, old %v, new %v", seed, step, v.flow, v.d, got, v.old, v.new)
				}
			}
		}
		follow(t, &rows, s, check)
		if s.Previous = nil; len(s.Policies) > 0 {
			compareAll(t, &s, &rows)
		}
	}
}

func TestNumbersStay(t *testing.T) {
	s := generator{rand.New(rand.NewPCG(7, 3))}.snapshot()
	first := testkit.Must(Compile(s, Rows{}))(t)
	again, _ := Compile(s, first)
	if c := Diff(first, again); c.Len() != 0 {
		t.Errorf("%d rows change with nothing changed", c.Len())
	}
	s.Pods = append(s.Pods, Pod{
		Namespace: "n0", Name: "late", Labels: map[string]string{"app": "new"},
		Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.77")},
		Node:      "m1",
	})
	more, _ := Compile(s, first)
	c := Diff(first, more)
	testkit.Check(t, len(c.Addresses.Put) == 1 && len(c.Addresses.Delete)+len(c.Endpoints.Put)+len(c.Verdicts.Delete) == 0,
		"a pod elsewhere changes %+v", c)
	numbers := map[uint32]bool{}
	for _, n := range more.Numbers {
		testkit.Check(t, !numbers[n] && n != 0, "number %d has two meanings", n)
		numbers[n] = true
	}
}
