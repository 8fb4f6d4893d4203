// SPDX-License-Identifier: Apache-2.0

package blame

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"mustang/internal/policy"
	"mustang/internal/policy/policytest"
)

// TestListBesideOverlaps has namespaces with many addresses each in blocks of their own, and one with a longer list that lies in no block: that one is not
// to blame, however many ranges there are.
func TestListBesideOverlaps(t *testing.T) {
	for _, addresses := range []int{7_000, 9_000} {
		apps := map[string][]string{"list": {"a"}}
		policies := []policy.Policy{policytest.Addresses("list", "list", 200, addresses+1000)}
		for i := range 8 {
			namespace := fmt.Sprint("tenant", i)
			p := policytest.Addresses(namespace, "nested", i, addresses)
			for bits := 8; bits < 12; bits++ {
				block := netip.PrefixFrom(netip.AddrFrom4([4]byte{20, byte(i), 0, 0}), 16)
				p.Ingress[0].Peers = append(p.Ingress[0].Peers, policy.Peer{Block: &policy.Block{CIDR: block, Except: []netip.Prefix{netip.PrefixFrom(block.Addr(), 20+bits)}}})
			}
			policies, apps[namespace] = append(policies, p), []string{"a"}
		}
		s := policytest.On(policies, apps)
		if s.CheckOverlaps() == nil {
			t.Fatalf("%d addresses: they do not overlap too much", addresses)
		}
		if gone := Overlaps(s); len(gone) == 0 || slices.ContainsFunc(gone, func(name string) bool { return !strings.HasPrefix(name, "tenant") }) {
			t.Errorf("%d addresses: they are %s", addresses, gone)
		}
	}
}
