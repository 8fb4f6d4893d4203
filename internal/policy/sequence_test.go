// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"mustang/internal/testkit"
)

// change changes one thing of a snapshot, which has slices of its own: a policy, or a pod's labels, namespace, ports or addresses, or
// the labels of a namespace or a node, or it adds or removes a pod.
func (g generator) change(s *Snapshot, step int) {
	pod := &s.Pods[g.IntN(len(s.Pods))]
	switch g.IntN(8) {
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
			more.Addresses = []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(20 + step)}), netip.MustParseAddr(fmt.Sprintf("fd00::1:%d", step))}
			s.Pods = append(s.Pods, more)
		}
	}
}

// TestManyChanges changes snapshots step by step. A compiler that has followed all of them, by changes alone or by way of the policies of
// before, has the rows that one has which begins with its numbers: nothing of before is left, and the rows decide as Explain does.
func TestManyChanges(t *testing.T) {
	for seed := range uint64(testkit.Repeats(200, 10_000)) {
		g := generator{rand.New(rand.NewPCG(seed, 4))}
		s := g.snapshot()
		c := NewCompiler(Rows{})
		if _, err := c.Change(s); err != nil {
			t.Fatal(err)
		}
		f := follower{t, c, &s, clone(c.Rows())}
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
	c    *Compiler
	s    *Snapshot
	rows Rows
}

// write writes changes, and compares the rows with those of the compiler, and with those that are compiled from nothing.
func (f *follower) write(changes Changes, where string) {
	f.Helper()
	write(&f.rows, changes, func() {})
	f.compare(where)
}

func (f *follower) compare(where string) {
	f.Helper()
	if d := Diff(f.rows, f.c.Rows()); d.Len() != 0 {
		f.Fatalf("%s: changes leave out %+v", where, d)
	}
	want, err := Compile(*f.s, f.rows)
	if err != nil {
		f.Fatalf("%s: %v", where, err)
	}
	if d := Diff(f.rows, want); d.Len() != 0 {
		f.Fatalf("%s: from nothing: %+v\n%s", where, d, text(f.s))
	}
}
