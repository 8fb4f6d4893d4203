// SPDX-License-Identifier: Apache-2.0

package blame

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"mustang/internal/policy"
	"mustang/internal/policy/policytest"
)

// TestWhoIsToBlame names whoever brings ranges to a node where many pods of others may call all addresses, whatever comes first and though
// the rules of the others are more; whoever has rules that are too much by themselves; and no ClusterNetworkPolicy before a NetworkPolicy.
func TestWhoIsToBlame(t *testing.T) {
	apps := policytest.Names(20)
	shop := map[string][]string{"shop": apps, "tenant": {"b"}}
	var internets, admins []policy.Policy
	admin := map[string][]string{"tenant": {"b"}}
	for i, app := range apps {
		internets = append(internets, policytest.Internet(policy.Namespaced, "shop", app, 100))
		namespace := fmt.Sprint("team", i)
		admins = append(admins, policytest.Internet(policy.Admin, namespace, "", 20))
		admin[namespace] = []string{"a"}
	}
	evil := policytest.Addresses("tenant", "evil", 0, 2_000)
	for name, c := range map[string]struct {
		policies []policy.Policy
		apps     map[string][]string
		want     string
	}{
		"ranges last":         {append(slices.Clone(internets), evil), shop, "NetworkPolicy tenant/evil"},
		"ranges first":        {append([]policy.Policy{evil}, internets...), shop, "NetworkPolicy tenant/evil"},
		"with the cluster's":  {append(slices.Clone(admins), evil), admin, "NetworkPolicy tenant/evil"},
		"too much by oneself": {[]policy.Policy{policytest.Addresses("shop", "list", 0, 5_000), policytest.Crossing("tenant", "q", 200, 3000)}, shop, "NetworkPolicy tenant/q"},
	} {
		t.Run(name, func(t *testing.T) {
			s := policytest.On(c.policies, c.apps)
			r := rulesOf(&s)
			if most := r.largest(costs{of: work, meeting: policy.MeetingWork, limit: policy.MostWork / 16}.tooMany(r)); most.String() != c.want {
				t.Errorf("it is %s, not %s", most, c.want)
			}
		})
	}
}

// TestFullest blames whoever brings ranges for the verdicts of others about these, though somebody else has more of his own.
func TestFullest(t *testing.T) {
	apps := policytest.Names(30)
	all := policy.Policy{Tier: policy.Namespaced, Namespace: "shop", Name: "all", IsolatesIngress: true, Subject: policytest.InNamespace("shop")}
	all.Ingress = []policy.Rule{{Action: policy.Accept, Peers: []policy.Peer{{Pods: &policy.PodSelector{Namespaces: policytest.InNamespace("away").Namespaces}}}}}
	s := policytest.On([]policy.Policy{all, policytest.Addresses("tenant", "evil", 0, 3000)}, map[string][]string{"shop": apps, "tenant": {"b"}})
	for _, app := range apps {
		s.Policies = append(s.Policies, policytest.Internet(policy.Namespaced, "shop", app, 1))
	}
	for n := range 150 {
		app := fmt.Sprint(n)
		s.Policies[0].Ingress[0].Peers = append(s.Policies[0].Ingress[0].Peers, policy.Peer{Pods: &policy.PodSelector{Pods: policy.Selector{Labels: map[string]string{"app": app}}}})
		s.Pods = append(s.Pods, policy.Pod{Namespace: "away", Name: app, Labels: map[string]string{"app": app}, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, byte(n >> 8), byte(n)})}})
	}
	rows := func(r policy.Rows, _ int) int { return len(r.Verdicts) }
	for verdicts, want := range map[bool]string{true: "tenant", false: "shop"} {
		if most := Fullest(s, rows, verdicts, 1<<30); !slices.Equal(most, []string{want}) {
			t.Errorf("%v: it is %s", verdicts, most)
		}
	}
}

// TestRuleSetsOfMany blames who has very many rule sets on a node for meeting the ranges of somebody else's usual list.
func TestRuleSetsOfMany(t *testing.T) {
	apps := policytest.Names(100)
	policies := []policy.Policy{policytest.Addresses("shop", "list", 0, 1200)}
	for i, app := range apps {
		p := policytest.Internet(policy.Namespaced, "tenant", app, 500+i)
		p.IsolatesIngress, p.Ingress = true, p.Egress
		policies = append(policies, p)
	}
	_, err := policy.NewCompiler(policy.Rows{}).Change(policytest.On(policies, map[string][]string{"shop": {"a"}, "tenant": apps}))
	var work *WorkError
	if !errors.As(Explain(err), &work) || !slices.Equal(work.TooMany, []string{"tenant"}) {
		t.Errorf("%+v, %v", work, err)
	}
}

// TestAsking blames whoever asks for labels in the most different sets of namespaces, before these are compared with each namespace.
func TestAsking(t *testing.T) {
	s := policytest.On([]policy.Policy{policytest.Internet(policy.Namespaced, "shop", "", 1)}, map[string][]string{"shop": {"a"}, "t0": {"a"}, "t1": {"a"}, "t2": {"a"}})
	for i, spaces := range []int{2000, 3000, 2500} {
		p := policytest.Addresses(fmt.Sprint("t", i), "asks", 0, 1)
		for k := range spaces {
			peer := &policy.PodSelector{Namespaces: policy.Selector{Requirements: []policy.Requirement{{Key: "team", Operator: "NotIn", Values: []string{fmt.Sprint(i, k)}}}}}
			for label := range 5 {
				peer.Pods.Requirements = append(peer.Pods.Requirements, policy.Requirement{Key: fmt.Sprint("k", label), Operator: "Exists"})
			}
			p.Ingress[0].Peers = append(p.Ingress[0].Peers, policy.Peer{Pods: peer})
		}
		s.Policies = append(s.Policies, p)
	}
	for i := range 1000 {
		s.Namespaces = append(s.Namespaces, policy.Namespace{Name: fmt.Sprint("n", i)})
	}
	_, err := policy.NewCompiler(policy.Rows{}).Change(s)
	var much *WorkError
	if !errors.As(Explain(err), &much) || !slices.Equal(much.TooMany, []string{"t1"}) {
		t.Errorf("%v, %+v", err, much)
	}
	s.Policies = slices.DeleteFunc(s.Policies, func(p policy.Policy) bool { return p.Namespace == "t1" })
	if _, err := policy.NewCompiler(policy.Rows{}).Change(s); err != nil {
		t.Errorf("the others: %v", err)
	}
}

// TestSameQuestions has many namespaces ask for the same labels of the pods of one of very many, which costs once, and one that has too many ranges: it alone is
// to blame.
func TestSameQuestions(t *testing.T) {
	apps := map[string][]string{"tenant": policytest.Names(20)}
	var s policy.Snapshot
	for i := range 250 {
		namespace := fmt.Sprint("n", i)
		p := policytest.Addresses(namespace, "scraped", 0, 1)
		p.Ingress[0].Peers = nil
		for k := range 28 {
			peer := &policy.PodSelector{Namespaces: policytest.InNamespace("monitoring").Namespaces, Pods: policy.Selector{Labels: map[string]string{"app": fmt.Sprint("m", k)}}}
			p.Ingress[0].Peers = append(p.Ingress[0].Peers, policy.Peer{Pods: peer})
		}
		apps[namespace], s.Policies = []string{"a"}, append(s.Policies, p)
	}
	for i := range 20 {
		p := policytest.Addresses("tenant", fmt.Sprint("list", i), i, 2000)
		p.Subject.Pods.Labels = map[string]string{"app": fmt.Sprint(i)}
		p.Ingress[0].Peers = append(p.Ingress[0].Peers, policy.Peer{Block: &policy.Block{CIDR: netip.MustParsePrefix("20.0.0.0/8")}})
		s.Policies = append(s.Policies, p)
	}
	s = policytest.On(s.Policies, apps)
	for i := range 5000 {
		s.Namespaces = append(s.Namespaces, policy.Namespace{Name: fmt.Sprint("far", i)})
	}
	_, err := policy.NewCompiler(policy.Rows{}).Change(s)
	var much *WorkError
	if !errors.As(Explain(err), &much) || !slices.Equal(much.TooMany, []string{"tenant"}) {
		t.Errorf("%v, %+v", err, much)
	}
}

// TestListHolds counts the ranges of rules that are in blocks, each once: none that a block leaves out, and none of a direction that a policy has no say in.
func TestListHolds(t *testing.T) {
	block := func(except ...netip.Prefix) policy.Policy {
		b := &policy.Block{CIDR: netip.MustParsePrefix("16.0.0.0/4"), Except: except}
		return policy.Policy{Tier: policy.Admin, Ingress: []policy.Rule{{Action: policy.Deny, Peers: []policy.Peer{{Block: b}}}}}
	}
	out, ten := netip.MustParsePrefix("20.0.0.0/8"), policytest.Addresses("a", "a", 0, 10)
	other := ten
	other.IsolatesIngress, other.IsolatesEgress = false, true
	for i, c := range []struct {
		list, policies []policy.Policy
		want           float64
	}{
		{[]policy.Policy{block()}, []policy.Policy{ten, ten}, 10},
		{[]policy.Policy{block(out)}, []policy.Policy{ten}, 0},
		{[]policy.Policy{block(out), block()}, []policy.Policy{ten}, 10},
		{[]policy.Policy{block()}, []policy.Policy{other}, 0},
		{nil, []policy.Policy{ten}, 0},
	} {
		if n := listOf(c.list).holds(c.policies); n != c.want {
			t.Errorf("%d: %v ranges, want %v", i, n, c.want)
		}
	}
}
