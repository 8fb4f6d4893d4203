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

// change changes one thing of a snapshot, which has slices of its own: a policy; a pod's labels, namespace, ports or
// addresses; the labels of a namespace or a node. Or it adds or removes a pod.
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
		pod.Labels, pod.Namespace = g.labels(), one(g, "n0", "n1", "n2")
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
			more.Addresses = []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(20 + step)}),
				netip.MustParseAddr(fmt.Sprintf("fd00::1:%d", step))}
			s.Pods = append(s.Pods, more)
		}
	}
}

func own(s Snapshot) Snapshot {
	s.Policies, s.Pods = slices.Clone(s.Policies), slices.Clone(s.Pods)
	s.Namespaces, s.Nodes = slices.Clone(s.Namespaces), slices.Clone(s.Nodes)
	return s
}

func follow(t *testing.T, rows *Rows, s Snapshot, after func()) {
	t.Helper()
	steps := testkit.Must(Steps(s, *rows, Limits{Work: MostWork}))(t)
	for _, step := range steps {
		write(rows, Diff(*rows, step), after)
		d := Diff(*rows, step)
		testkit.Require(t, d.Len() == 0, "changes leave out %+v", d)
	}
}

// TestManyChanges changes snapshots step by step, by way of the policies of before or without it. Nothing of before is
// left, and the rows decide as Explain does.
func TestManyChanges(t *testing.T) {
	for seed := range uint64(testkit.Repeats(200, 10_000)) {
		g := generator{rand.New(rand.NewPCG(seed, 4))}
		s := g.snapshot()
		rows := testkit.Must(Compile(s, Rows{}))(t)
		for step := range 10 {
			before := s
			s = own(s)
			for n := range 1 + g.IntN(3) {
				g.change(&s, 3*step+n)
			}
			if s.Previous = nil; g.IntN(2) == 0 {
				s.Previous = &before
			}
			follow(t, &rows, s, func() {})
			s.Previous = nil
			want := testkit.Must(Compile(s, rows))(t)
			if len(s.Policies) == 0 {
				want, _ = Compile(Snapshot{}, rows)
			}
			if d := Diff(rows, want); d.Len() != 0 {
				t.Fatalf("seed %d, step %d, from nothing: %+v\n%s", seed, step, d, text(&s))
			}
			if seed%30 == 0 && step%4 == 3 && len(s.Policies) > 0 {
				compareAll(t, &s, &rows)
			}
		}
	}
}

// TestKilledBetweenMaps begins anew with the rows that a process has left which was killed between two maps: no number
// has two meanings, and the rows decide as Explain does.
func TestKilledBetweenMaps(t *testing.T) {
	for seed := range uint64(testkit.Repeats(30, 1000)) {
		g := generator{rand.New(rand.NewPCG(seed, 5))}
		before := g.snapshot()
		s := own(before)
		s.Policies, s.Previous = append(s.Policies, g.policies()...), &before
		if seed%2 == 0 {
			s.Policies, before.Policies = before.Policies, s.Policies
		}
		rows := testkit.Must(Compile(before, Rows{}))(t)
		var killed []Rows
		follow(t, &rows, s, func() { killed = append(killed, clone(rows)) })
		for step, rows := range killed {
			follow(t, &rows, s, func() {})
			numbers := map[uint32]bool{}
			for _, n := range rows.Numbers {
				testkit.Require(t, !numbers[n], "number %d has two meanings", n)
				numbers[n] = true
			}
			if step%5 == int(seed%5) && len(s.Policies) > 0 {
				now := s
				now.Previous = nil
				compareAll(t, &now, &rows)
			}
		}
	}
}
