// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"mustang/internal/service"
	"mustang/internal/testkit"
)

// change changes one thing of a snapshot, which has slices of its own: a policy, or a pod's labels, namespace, ports or addresses, or
// the labels of a namespace or a node, or it adds or removes a pod.
func (g generator) change(s *Snapshot, step int) {
	pod := &s.Pods[g.IntN(len(s.Pods))]
	switch g.IntN(9) {
	case 8: // ports of one rule
		if i := g.IntN(len(s.Policies) + 1); i < len(s.Policies) && len(s.Policies[i].Ingress) > 0 {
			p := &s.Policies[i]
			p.Ingress = slices.Clone(p.Ingress)
			p.Ingress[g.IntN(len(p.Ingress))].Ports = []Port{{Protocol: service.TCP, First: 80, Last: 80 + uint16(g.IntN(4))}}
		}
	case 0:
		s.Policies = append(s.Policies, g.policy(100+step))
	case 1, 2:
		if i := g.IntN(len(s.Policies) + 1); i < len(s.Policies) {
			was := s.Policies[i]
			s.Policies[i] = g.policy(0)
			s.Policies[i].Name = was.Name
		}
	case 3:
		if i := g.IntN(len(s.Policies) + 1); i < len(s.Policies) {
			s.Policies = slices.Delete(s.Policies, i, i+1)
		}
	case 4:
		pod.Labels, pod.Namespace, pod.Lacks = g.labels(), one(g, "n0", "n1", "n2"), g.IntN(4) == 0
	case 5:
		s.Namespaces[g.IntN(len(s.Namespaces))].Labels = g.labels()
		s.Nodes[g.IntN(len(s.Nodes))].Labels = g.labels()
	case 6:
		if len(s.Pods) > 3 {
			s.Pods = slices.Delete(s.Pods, 0, 1)
		}
	default:
		if more := *pod; !more.HostNetwork {
			more.Name = fmt.Sprintf("more%d", step)
			more.Addresses = []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(20 + step)}), netip.MustParseAddr(fmt.Sprintf("fd00::1:%d", step))}
			s.Pods = append(s.Pods, more)
		}
	}
}

// TestManyChanges changes snapshots step by step. A compiler that has followed all of them, by changes alone or by way of the policies of
// before, has once it is settled the rows that one has which begins with its numbers: nothing of before is left, and the rows decide as Explain does.
func TestManyChanges(t *testing.T) {
	for seed := range uint64(testkit.Repeats(200, 10_000)) {
		g := generator{rand.New(rand.NewPCG(seed, 4))}
		s := g.snapshot()
		c := NewCompiler(Rows{})
		if _, err := c.Change(s); err != nil {
			t.Fatal(err)
		}
		f := follower{T: t, c: c, s: &s, rows: clone(c.Rows())}
		for step := range 20 {
			policies := s.Policies
			s.Policies = slices.Clone(s.Policies)
			for n := range 1 + g.IntN(3) {
				g.change(&s, 3*step+n)
			}
			if g.IntN(2) == 0 {
				s.Previous = append([]Policy{}, policies...)
			}
			changes, err := c.Change(s)
			if err != nil {
				t.Fatalf("seed %d, step %d: %v", seed, step, err)
			}
			f.write(changes, fmt.Sprintf("seed %d, step %d", seed, step))
			if s.Previous = nil; g.IntN(4) > 0 {
				f.write(c.Settle(), fmt.Sprintf("seed %d, step %d, settled", seed, step))
				f.compareToNew(fmt.Sprintf("seed %d, step %d", seed, step))
			}
			if seed%30 == 0 && step%4 == 3 {
				compareAll(t, &s, &f.rows)
			}
		}
	}
}

// follower has the rows that a compiler's changes have made for a snapshot.
type follower struct {
	*testing.T
	c       *Compiler
	s       *Snapshot
	rows    Rows
	inPlace int // changes
}

// write writes changes, and compares the rows with those of the compiler.
func (f *follower) write(changes Changes, where string) {
	f.Helper()
	write(&f.rows, changes, func() {})
	if changes.InPlace == (Digest{}) {
		f.compare(where)
	} else if d := Diff(f.rows, f.c.Rows()); d.Len() != 0 || len(changes.Verdicts.Put) != 1 || len(changes.Endpoints.Put) > 0 {
		f.Fatalf("%s: in place: %+v, %+v", where, d, changes)
	} else {
		f.inPlace++
	}
}

func (f *follower) compare(where string) {
	f.Helper()
	if d := Diff(f.rows, f.c.Rows()); d.Len() != 0 {
		f.Fatalf("%s: changes leave out %+v", where, d)
	}
}

// compareToNew compares the rows with those that are compiled from nothing.
func (f *follower) compareToNew(where string) {
	f.Helper()
	want, err := Compile(*f.s, f.rows)
	if err != nil {
		f.Fatalf("%s: %v", where, err)
	}
	if d := Diff(f.rows, want); d.Len() != 0 {
		f.Fatalf("%s: from nothing: %+v\n%s", where, d, text(f.s))
	}
}

// TestOneRuleChangesInPlace changes one rule of many, each of which allows a range of its own: its ports, or a further rule for the range
// of another one. One row switches all pods over, and the rows are those that are compiled from nothing. Another range for a rule needs
// a new set.
func TestOneRuleChangesInPlace(t *testing.T) {
	g := generator{rand.New(rand.NewPCG(1, 5))}
	rule := func(i int) Rule {
		port := 80 + uint16(g.IntN(9))
		at := netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 16, byte(i), 0}), 24)
		return Rule{Peers: []Peer{{Block: &Block{CIDR: at}}}, Ports: []Port{{Protocol: service.TCP, First: port, Last: port}}}
	}
	s := Snapshot{Policies: []Policy{{Tier: Namespaced, Namespace: "n0", Name: "many", IsolatesIngress: true}}}
	for i := range 3 {
		s.Pods = append(s.Pods, Pod{Namespace: "n0", Name: fmt.Sprint(i), Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})}})
	}
	for i := range 100 {
		s.Policies[0].Ingress = append(s.Policies[0].Ingress, rule(i))
	}
	c := NewCompiler(Rows{})
	if _, err := c.Change(s); err != nil {
		t.Fatal(err)
	}
	f := follower{T: t, c: c, s: &s, rows: clone(c.Rows())}
	for step := range 300 {
		where := fmt.Sprintf("step %d", step)
		s.Previous, s.Policies = s.Policies, slices.Clone(s.Policies)
		p, i, inPlace := &s.Policies[0], g.IntN(100), f.inPlace
		p.Ingress = slices.Clone(p.Ingress)
		switch kind := g.IntN(4); {
		case kind == 0 && len(p.Ingress) > 100:
			p.Ingress = p.Ingress[:len(p.Ingress)-1]
		case kind == 1:
			p.Ingress = append(p.Ingress, rule(i))
		case kind == 2 && step%10 == 0:
			p.Ingress[i] = rule(100 + step%100)
		default:
			p.Ingress[i].Ports = rule(i).Ports
		}
		changes, err := c.Change(s)
		if err != nil {
			t.Fatal(err)
		}
		f.write(changes, where)
		if n := len(changes.Verdicts.Put); n > 1 != (len(changes.Endpoints.Put) > 0) || f.inPlace == inPlace && n == 1 {
			t.Fatalf("%s: %d verdicts, %d endpoints", where, n, len(changes.Endpoints.Put))
		}
		s.Previous = nil
		f.write(c.Settle(), where+", settled")
		f.compareToNew(where)
	}
	if f.inPlace < 100 {
		t.Errorf("%d of 300 changes were made in place", f.inPlace)
	}
}

// TestSetOfOtherPodsStays gives one of two pods labels that a further policy selects, while policies of before are kept. The set that it had
// with the other differs in one row from its new one, and is still the other's.
func TestSetOfOtherPodsStays(t *testing.T) {
	app := func(name string) Selector { return Selector{Labels: map[string]string{"app": name}} }
	allow := func(name string, subject Selector, port uint16) Policy {
		return Policy{Tier: Namespaced, Namespace: "n", Name: name, Subject: PodSelector{Pods: subject}, IsolatesIngress: true, Ingress: []Rule{{
			Peers: []Peer{{Pods: &PodSelector{Pods: app("z")}}}, Ports: []Port{{Protocol: service.TCP, First: port, Last: port}},
		}}}
	}
	s := Snapshot{Node: "here", Policies: []Policy{allow("all", Selector{}, 80), allow("y", app("y"), 81)}}
	for i, pod := range []struct{ app, node string }{{"x", "here"}, {"x", "here"}, {"y", "there"}, {"z", "there"}} {
		s.Pods = append(s.Pods, Pod{
			Namespace: "n", Name: fmt.Sprint(i), Labels: app(pod.app).Labels, Node: pod.node,
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})},
		})
	}
	c := NewCompiler(Rows{})
	if _, err := c.Change(s); err != nil {
		t.Fatal(err)
	}
	f := follower{T: t, c: c, s: &s, rows: clone(c.Rows())}
	s.Pods, s.Previous = slices.Clone(s.Pods), s.Policies
	s.Pods[0].Labels = app("y").Labels
	changes, err := c.Change(s)
	if err != nil {
		t.Fatal(err)
	}
	f.write(changes, "labels")
	compareAllOf(t, &s, &f.rows)
	s.Previous = nil
	f.write(c.Settle(), "settled")
	f.compareToNew("settled")
	compareAllOf(t, &s, &f.rows)
}

// compareAllOf compares Lookup with Explain for the pods of a snapshot.
func compareAllOf(t *testing.T, s *Snapshot, rows *Rows) {
	t.Helper()
	for _, from := range s.Pods {
		for _, to := range s.Pods[:2] {
			for _, port := range []uint16{80, 81, 82} {
				f := Flow{from.Addresses[0], to.Addresses[0], service.TCP, port}
				_, want, err := Explain(*s, f)
				if _, got := rows.Lookup(f); err != nil || got != want {
					t.Errorf("%v: %v, want %v: %v", f, got, want, err)
				}
			}
		}
	}
}
