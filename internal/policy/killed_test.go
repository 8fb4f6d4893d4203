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
			requireUnique(t, rows)
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

func requireUnique(t *testing.T, rows Rows) {
	t.Helper()
	numbers := map[uint32]bool{}
	for _, n := range rows.Numbers {
		if numbers[n] {
			t.Fatalf("number %d has two meanings", n)
		}
		numbers[n] = true
	}
}

// TestNumbersBeginAgain has a compiler come to the last number while it changes: no two things have one number, and
// the rows decide as Explain does.
func TestNumbersBeginAgain(t *testing.T) {
	again := 0
	for seed := range uint64(testkit.Repeats(20, 500)) {
		g := generator{rand.New(rand.NewPCG(seed, 6))}
		s := g.snapshot()
		c := NewCompiler(Rows{})
		if _, err := c.Change(s); err != nil {
			t.Fatal(err)
		}
		rows := clone(c.Rows())
		c.numbers.last = mostNumbers - 1 - uint32(seed%6)
		for step := range 5 {
			s.Previous = slices.Clone(s.Policies)
			g.change(&s, step)
			s.Policies = append(s.Policies, g.policy(200+step))
			changes, err := c.Change(s)
			if err != nil {
				t.Fatal(err)
			}
			write(&rows, changes, func() {})
			write(&rows, c.Settle(), func() {})
			requireUnique(t, rows)
			s.Previous = nil
			(&follower{T: t, c: c, s: &s, rows: rows}).compare("settled")
			compareAll(t, &s, &rows)
		}
		if c.numbers.last < mostNumbers/2 {
			again++
		}
	}
	if again < 10 {
		t.Errorf("%d compilers have come to the last number", again)
	}
}
