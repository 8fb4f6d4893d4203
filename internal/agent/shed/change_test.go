// SPDX-License-Identifier: Apache-2.0

package shed

import (
	"net/netip"
	"testing"

	"mustang/internal/policy"
)

// TestChangeHasRoom changes most rows of a tenant back and forth: while the rows of before and after are there side by side, they are more than
// all policies may have. Nobody loses rules.
func TestChangeHasRoom(t *testing.T) {
	ports := func(namespace string, ranges, variant int) policy.Policy {
		p := manyPorts(namespace, 200, ranges)
		for i := range p.Ingress[0].Ports {
			p.Ingress[0].Ports[i].First += uint16(variant)
			p.Ingress[0].Ports[i].Last += uint16(variant)
		}
		return p
	}
	addresses := func(namespace string, n, variant int) policy.Policy {
		p := with(namespace, "list", n)
		for i := range p.Ingress[0].Peers {
			at := p.Ingress[0].Peers[i].Block.CIDR.Addr().As4()
			p.Ingress[0].Peers[i].Block.CIDR = netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(20 + variant), at[1], at[2], at[3]}), 32)
		}
		return p
	}
	for name, test := range map[string]struct {
		policy        func(namespace string, n, variant int) policy.Policy
		other, tenant int
	}{
		"ports": {ports, 110, 90}, "addresses": {addresses, 27_000, 20_000},
	} {
		t.Run(name, func(t *testing.T) {
			want := newOnNode(t)
			for _, namespace := range []string{"other", "tenant"} {
				want.add(t, namespace, 1)
			}
			var s Shedder
			for _, variant := range []int{1, 2, 1} {
				set := want.Set
				set.Policies = []policy.Policy{test.policy("other", test.other, 0), test.policy("tenant", test.tenant, variant)}
				for i := range set.Policies {
					set.Policies[i].Subject.Namespaces = selects(policy.NamespaceLabel, set.Policies[i].Namespace)
				}
				if full, lost, err := s.Apply(t.Context(), want.datapath.Policies(), want.Pods[0].Node, set); len(full) > 0 || lost != nil || err != nil {
					t.Errorf("variant %d: %v, %v, %v", variant, full, lost, err)
				}
			}
		})
	}
}
