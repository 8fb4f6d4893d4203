// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"math/rand/v2"
	"slices"
	"testing"

	"mustang/internal/testkit"
)

// TestKilledBetweenMaps begins anew with the rows that a process has left which was killed between two maps: no number has two meanings, and the rows decide
// as Explain does.
func TestKilledBetweenMaps(t *testing.T) {
	for seed := range uint64(testkit.Repeats(30, 1000)) {
		g := generator{rand.New(rand.NewPCG(seed, 5))}
		s := g.snapshot()
		c := NewCompiler(Rows{})
		if _, err := c.Change(s); err != nil {
			t.Fatal(err)
		}
		rows := clone(c.Rows())
		s.Previous, s.Policies = s.Policies, append(slices.Clone(s.Policies), g.policies()...)
		if seed%2 == 0 {
			s.Previous, s.Policies = s.Policies, s.Previous
			if _, err := c.Change(Snapshot{Node: s.Node, Nodes: s.Nodes, Pods: s.Pods, Namespaces: s.Namespaces, Policies: s.Previous}); err != nil {
				t.Fatal(err)
			}
			c.Settle()
			rows = clone(c.Rows())
		}
		var killed []Rows
		note := func() { killed = append(killed, clone(rows)) }
		changes, err := c.Change(s)
		if err != nil {
			t.Fatal(err)
		}
		write(&rows, changes, note)
		write(&rows, c.Settle(), note)
		for step, rows := range killed {
			rows.Rules = map[uint32]Origin{} // they are in no map
			again := NewCompiler(rows)
			if err := again.Resume(s); err != nil {
				t.Fatal(err)
			}
			write(&rows, Diff(rows, again.Rows()), func() {})
			write(&rows, again.Settle(), func() {})
			numbers := map[uint32]bool{}
			for _, n := range rows.Numbers {
				if numbers[n] {
					t.Fatalf("seed %d, step %d: number %d has two meanings", seed, step, n)
				}
				numbers[n] = true
			}
			if d := Diff(rows, again.Rows()); d.Len() != 0 {
				t.Fatalf("seed %d, step %d: changes leave out %+v", seed, step, d)
			}
			if step%5 == int(seed%5) {
				now := s
				now.Previous = nil
				compareAll(t, &now, &rows)
			}
		}
	}
}
