// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"mustang/internal/policy"
)

// TestPoliciesOfAll fills the documents, which have the policies of all nodes' pods, with those of namespaces that have no pod here: each of many has less
// than would be its fault, or one has a great many without rules. These lose theirs, shop does not, and the next round is as quick as any.
func TestPoliciesOfAll(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	lists := func() (all []policy.Policy) {
		for n := range 24 {
			p := policy.Policy{Tier: policy.Namespaced, Namespace: fmt.Sprint("evil", n), Name: "list", IsolatesIngress: true, Ingress: make([]policy.Rule, 1)}
			for p.Bulk() < 500_000 {
				for range 5000 {
					at := netip.AddrFrom4([4]byte{byte(20 + random.IntN(100)), byte(random.Uint32()), byte(random.Uint32()), byte(random.Uint32())})
					p.Ingress[0].Peers = append(p.Ingress[0].Peers, policy.Peer{Block: &policy.Block{CIDR: netip.PrefixFrom(at, 32)}})
				}
			}
			all = append(all, p)
		}
		return all
	}
	selectors := func() (all []policy.Policy) {
		for n := range 3500 {
			p := policy.Policy{Tier: policy.Namespaced, Namespace: "evil", Name: fmt.Sprint("p", n), IsolatesIngress: true}
			in := policy.Requirement{Key: "a", Operator: "In"}
			for range 55 {
				in.Values = append(in.Values, randomText(random, 62))
			}
			in.Sort()
			p.Subject.Pods.Requirements = []policy.Requirement{in}
			all = append(all, p)
		}
		return all
	}
	for name, evil := range map[string]func() []policy.Policy{"lists": lists, "selectors": selectors} {
		t.Run(name, func(t *testing.T) {
			want := newOnNode(t)
			want.add(t, "shop", 1)
			for _, p := range evil() {
				p.Subject.Namespaces = selects(policy.NamespaceLabel, p.Namespace)
				want.Policies = append(want.Policies, p)
			}
			var stripped stripped
			to := &counting{Policies: want.datapath.Policies()}
			for round, most := range []int{6, 1} {
				to.calls = 0
				full, lost, err := stripped.apply(t.Context(), to, want.Pods[0].Node, want.Set)
				if err != nil || lost == nil || len(full) == 0 || to.calls > most {
					t.Fatalf("round %d: %d calls, %d lose, %v, %v", round, to.calls, len(full), lost, err)
				}
				for _, w := range full {
					if !strings.HasPrefix(w.Namespace, "evil") {
						t.Fatalf("round %d: %v", round, w)
					}
				}
			}
			if err := want.admit(t); err != nil {
				t.Error(err)
			}
		})
	}
}
