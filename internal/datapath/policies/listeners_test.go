// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"testing"

	"mustang/internal/datapath/rows"
	"mustang/internal/policy"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// TestListenEverywhere has processes of a pod listen on all ports: policies come into force all the same, and what others listen on is
// known.
func TestListenEverywhere(t *testing.T) {
	testkit.RequireRoot(t)
	p := openPods(t)
	for i := range pods {
		at := rows.EncodeAddr(address4(i))
		row, _, err := p.Objects.Endpoints.Get(at)
		if err != nil {
			t.Fatal(err)
		}
		row.Netns = uint64(100 + i)
		if err := p.Objects.Endpoints.Put(at, row); err != nil {
			t.Fatal(err)
		}
	}
	p.Listening = func(each func(uint64, func() []uint16) error) error {
		for i := range pods {
			err := each(uint64(100+i), func() (ports []uint16) {
				if i > 0 {
					return []uint16{80, 443}
				}
				for port := 1; port < 1<<16; port++ {
					ports = append(ports, uint16(port))
				}
				return ports
			})
			if err != nil {
				return err
			}
		}
		return nil
	}
	deny := policy.Policy{Tier: policy.Namespaced, Namespace: "default", Name: "deny", IsolatesIngress: true}
	if _, err := p.Apply(t.Context(), service.CLI, Set{Snapshot: policy.Snapshot{Policies: []policy.Policy{deny}}}); err != nil {
		t.Fatal(err)
	}
	listening := map[uint32]int{}
	for row, err := range p.tables().ports.All() {
		if err != nil {
			t.Fatal(err)
		}
		if row.Key.Table >= ofListeners && row.Key.Length > 0 {
			listening[row.Key.Table&^ofListeners]++
		}
	}
	for i := range pods {
		if want := min(2*i, 2); listening[uint32(i+1)] != want {
			t.Errorf("pod %d: %d ports, want %d", i+1, listening[uint32(i+1)], want)
		}
	}
	for i := range pods {
		if row, _, err := p.Objects.Endpoints.Get(rows.EncodeAddr(address4(i))); err != nil || row.Ingress == 0 {
			t.Errorf("pod %d: ingress %d, %v", i+1, row.Ingress, err)
		}
	}
}
