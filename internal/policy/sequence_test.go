// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
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

// TestManyChanges changes snapshots step by step, each time from the rows of before: these decide as Explain does, and are as many as
// those that are compiled from nothing, so nothing of before is left.
func TestManyChanges(t *testing.T) {
	for seed := range uint64(6) {
		g := generator{rand.New(rand.NewPCG(seed, 4))}
		s := g.snapshot()
		rows, err := Compile(s, Rows{})
		if err != nil {
			t.Fatal(err)
		}
		for step := range 20 {
			g.change(&s, step)
			want, err := Compile(s, rows)
			if err != nil {
				t.Fatalf("seed %d, step %d: %v", seed, step, err)
			}
			fresh, err := Compile(s, Rows{})
			if err != nil {
				t.Fatal(err)
			}
			write(&rows, Diff(rows, want), func() {})
			for what, n := range map[string][2]int{
				"addresses": {len(rows.Addresses), len(fresh.Addresses)}, "endpoints": {len(rows.Endpoints), len(fresh.Endpoints)},
				"verdicts": {len(rows.Verdicts), len(fresh.Verdicts)}, "ports": {len(rows.Ports), len(fresh.Ports)},
				"rules": {len(rows.Rules), len(fresh.Rules)}, "numbers": {len(rows.Numbers), len(fresh.Numbers)},
			} {
				if n[0] != n[1] {
					t.Fatalf("seed %d, step %d: %d %s, and %d from nothing", seed, step, n[0], what, n[1])
				}
			}
			if step%4 == 3 {
				compareAll(t, &s, &rows)
			}
		}
	}
}
