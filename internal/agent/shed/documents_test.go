// SPDX-License-Identifier: Apache-2.0

package shed

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/policies"
	"mustang/internal/policy"
	"mustang/internal/service"
)

// fewPolicies has room for as many policies, and fails for another reason once.
type fewPolicies struct {
	Policies
	most int
	once error
}

func (f *fewPolicies) Apply(_ context.Context, _ service.Owner, want policies.Set) (policies.Result, error) {
	if len(want.Policies) > f.most {
		return policies.Result{}, &objects.FullError{Map: policies.Documents, Size: 16384}
	}
	err := f.once
	f.once = nil
	return policies.Result{}, err
}

// TestIsolatedAreTold isolates a namespace in a round that fails then, and in the next ones: each tells. All are tried again once, as there may be room when what
// was there before has gone, and not for ever.
func TestIsolatedAreTold(t *testing.T) {
	want := policies.Set{Snapshot: policy.Snapshot{Policies: []policy.Policy{with("shop", "web", 3)}}}
	random := rand.New(rand.NewPCG(1, 2))
	for n := range 3000 {
		p := with("tenant", fmt.Sprint("p", n), 0)
		p.Ingress = nil
		p.Subject.Pods = selects("app", randomText(random, 400))
		want.Policies = append(want.Policies, p)
	}
	var s Shedder
	to := &fewPolicies{most: 100, once: errors.New("another reason")}
	for round, later := range []bool{false, true, false, false} {
		full, lost, err := s.Apply(t.Context(), to, "here", want)
		if (err != nil) != (round == 0) || (lost == nil) != (round == 0) || len(full) != 3000 || s.Retry != later {
			t.Errorf("round %d: %d are told, %v, %v, later %v", round, len(full), lost, err, s.Retry)
		}
	}
	s.tried = time.Now().Add(-Hold)
	if full, _, err := s.Apply(t.Context(), to, "here", want); err != nil || len(full) != 3000 || s.Retry {
		t.Errorf("after a minute: %d are told, %v, later %v", len(full), err, s.Retry)
	}
}

// longText returns a NetworkPolicy that names so many values of 62 bytes.
func longText(random *rand.Rand, namespace, name string, values int) policy.Policy {
	p := with(namespace, name, 0)
	p.Subject.Namespaces = selects(policy.NamespaceLabel, namespace)
	in := policy.Requirement{Key: "a", Operator: "In"}
	for range values {
		in.Values = append(in.Values, randomText(random, 62))
	}
	in.Sort()
	p.Ingress = []policy.Rule{{Peers: []policy.Peer{{Pods: &policy.PodSelector{Pods: policy.Selector{Requirements: []policy.Requirement{in}}}}}}}
	return p
}

// TestAllDocumentsChange changes all that the documents have, where they are more than half full: what they had before is there too meanwhile, and nobody loses
// rules for that.
func TestAllDocumentsChange(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	want := newOnNode(t)
	want.add(t, "shop", 1)
	var s Shedder
	for range 3 {
		want.Policies = want.Policies[:1]
		for n := range 80 {
			want.Policies = append(want.Policies, longText(random, fmt.Sprint("team", n), "text", 1500))
		}
		full, lost, err := s.Apply(t.Context(), want.datapath.Policies(), want.Pods[0].Node, want.Set)
		if err != nil || lost != nil || len(full) > 0 {
			t.Fatalf("%d lose, %v, %v", len(full), lost, err)
		}
	}
	if n := pieces(t, want); n < 8192 || n > 15<<10 {
		t.Errorf("%d pieces: the test is to fill more than half", n)
	}
}

// pieces returns how many rows the documents have.
func pieces(t *testing.T, want *onNode) (n int) {
	t.Helper()
	documents := want.datapath.Policies().Objects.Policies[policies.Documents]
	key, value := make([]byte, documents.KeySize()), make([]byte, documents.ValueSize())
	each := documents.Iterate()
	for each.Next(&key, &value) {
		n++
	}
	if err := each.Err(); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestAlikePoliciesTakeLittle fills the documents beside a namespace with much text that repeats itself, and takes little: it loses nothing.
func TestAlikePoliciesTakeLittle(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	want := newOnNode(t)
	want.add(t, "shop", 1)
	for n := range 1500 {
		p := with("platform", fmt.Sprint("chart", n), 0)
		p.Subject = policy.PodSelector{Namespaces: selects(policy.NamespaceLabel, "platform"), Pods: selects("app", fmt.Sprint("chart", n))}
		for range 6 {
			p.Ingress = append(p.Ingress, policy.Rule{Peers: []policy.Peer{{Pods: &policy.PodSelector{Pods: selects("app.kubernetes.io/part-of", strings.Repeat("platform-", 6)+"x")}}}})
		}
		want.Policies = append(want.Policies, p)
	}
	for n := range 12 {
		for k := range 6 {
			want.Policies = append(want.Policies, longText(random, fmt.Sprint("evil", n), fmt.Sprint("text", k), 2500))
		}
	}
	full, lost, err := new(Shedder).Apply(t.Context(), want.datapath.Policies(), want.Pods[0].Node, want.Set)
	if err != nil || lost == nil || len(full) == 0 {
		t.Errorf("%d lose, %v, %v", len(full), lost, err)
	}
	for _, w := range full {
		if !strings.HasPrefix(w.Namespace, "evil") {
			t.Fatal(w)
		}
	}
}

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
			var s Shedder
			to := &counting{Policies: want.datapath.Policies()}
			for round, most := range []int{6, 1} {
				to.calls = 0
				full, lost, err := s.Apply(t.Context(), to, want.Pods[0].Node, want.Set)
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
