// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"mustang/internal/policy"
	"mustang/internal/testkit"
)

// TestTotal refuses a small change if all work together is too much. It accepts in one piece all that it accepted step
// by step.
func TestTotal(t *testing.T) {
	policy.Bound(t, policy.MostWork/16)
	apps := names(8)
	for i := range apps {
		apps[i] = "s" + apps[i]
	}
	s := on(nil, map[string][]string{"shop": apps, "tenant": {"b"}})
	for _, app := range apps {
		s.Policies = append(s.Policies, internet(policy.Namespaced, "shop", app, 2))
	}
	step := func(policies []policy.Policy) error {
		next := s
		next.Policies = policies
		_, err := policy.Compile(next, policy.Rows{})
		return err
	}
	for round := range 8 { // deleted policies cost nothing any more
		err := step(append(slices.Clone(s.Policies), addresses("tenant", "list", 20*round, 1_000)))
		testkit.Require(t, err == nil, "round %d: %v", round, err)
	}
	refused := error(nil)
	for n := 0; refused == nil && n < 10; n++ {
		if refused = step(append(slices.Clone(s.Policies), addresses("tenant", fmt.Sprint("more", n), 200+n,
			800))); refused == nil {
			s.Policies = append(s.Policies, addresses("tenant", fmt.Sprint("more", n), 200+n, 800))
		}
	}
	var work *policy.LimitError
	testkit.Check(t, errors.As(refused, &work), "%v", refused)
	testkit.Check(t, len(s.Policies) != len(apps), "nothing was accepted")
	_, err := policy.Compile(s, policy.Rows{})
	testkit.Check(t, err == nil, "what was accepted: %v", err)
}

// TestJoin adds a pod to a node where all is more work than it may be, and refuses one whose own policies are too much.
func TestJoin(t *testing.T) {
	policy.Bound(t, policy.MostWork/16)
	apps := names(20)
	s := on(nil, map[string][]string{"shop": apps, "tenant": {"b"}})
	for _, app := range apps {
		s.Policies = append(s.Policies, internet(policy.Namespaced, "shop", app, 2))
	}
	s.Policies = append(s.Policies, addresses("tenant", "evil", 0, 2_000), internet(policy.Namespaced, "joining", "", 100),
		crossing("joins", "q", 200, 3000))
	for _, namespace := range []string{"joining", "joins"} {
		if _, err := policy.Compile(s, policy.Rows{}); err == nil {
			t.Fatal("it is not too much work")
		}
		next := s
		next.Previous = &s
		next.Pods = append(slices.Clone(s.Pods), policy.Pod{Namespace: namespace, Name: "p", Node: "node",
			Addresses: []netip.Addr{netip.MustParseAddr("10.9.0.1")}})
		_, err := policy.Steps(next, policy.Rows{}, policy.Limits{Work: policy.MostWork / 16, Joins: true})
		var work *policy.LimitError
		if refused := errors.As(err, &work); refused != (namespace == "joins") || refused && work.Largest.Name != "q" ||
			err != nil && !refused {
			t.Errorf("%s: %v", namespace, err)
		}
	}
}

// TestSelectorsOfNobody counts rules whose selectors match no pod: each term is looked at for each rule set, and each
// value is kept.
func TestSelectorsOfNobody(t *testing.T) {
	policy.Bound(t, 1<<12)
	none := func(n int) policy.Requirement {
		return policy.Requirement{Key: "app", Operator: "In", Values: []string{fmt.Sprint("none", n)}}
	}
	for name, peers := range map[string]func(n int) []policy.Peer{
		"peers": func(n int) (all []policy.Peer) {
			for i := range n {
				all = append(all, policy.Peer{Pods: &policy.PodSelector{Pods: policy.Selector{Requirements: []policy.Requirement{
					none(i)}}}})
			}
			return all
		},
		"terms": func(n int) []policy.Peer {
			all := policy.Selector{Requirements: slices.Repeat([]policy.Requirement{none(0)}, n)}
			return []policy.Peer{{Pods: &policy.PodSelector{Pods: all}}}
		},
		"values": func(n int) []policy.Peer {
			all := none(0)
			for i := range 8 * n {
				all.Values = append(all.Values, fmt.Sprint(i))
			}
			all.Sort()
			return []policy.Peer{{Pods: &policy.PodSelector{Pods: policy.Selector{Requirements: []policy.Requirement{all}}}}}
		},
	} {
		p := policy.Policy{Tier: policy.Namespaced, Namespace: "tenant", Name: "nobody", IsolatesIngress: true,
			Subject: inNamespace("tenant"), Ingress: make([]policy.Rule, 1)}
		policies := []policy.Policy{p, internet(policy.Namespaced, "shop", "a", 1)}
		for _, app := range names(9) {
			own := policy.Policy{Tier: policy.Namespaced, Namespace: "tenant", Name: "own" + app, IsolatesIngress: true,
				Subject: inNamespace("tenant")}
			own.Subject.Pods.Labels = map[string]string{"app": app}
			policies = append(policies, own)
		}
		s := on(policies, map[string][]string{"tenant": names(9), "shop": {"a"}})
		for n, want := range map[int]bool{50: false, 500: true} {
			policies[0].Ingress[0].Peers = peers(n)
			_, err := policy.Compile(s, policy.Rows{})
			var over *policy.LimitError
			testkit.Check(t, errors.As(err, &over) == want, "%d %s: %v", n, name, err)
		}
	}
}

func except(namespace, name string, rules int) policy.Policy {
	p := policy.Policy{Tier: policy.Namespaced, Namespace: namespace, Name: name, IsolatesIngress: true,
		Subject: inNamespace(namespace)}
	for n := range rules {
		p.Ingress = append(p.Ingress, policy.Rule{Action: policy.Accept, Peers: []policy.Peer{{Pods: &policy.PodSelector{
			Pods: policy.Selector{Requirements: []policy.Requirement{{Key: "x", Operator: "NotIn",
				Values: []string{fmt.Sprint(n)}}}},
		}}}})
	}
	return p
}

// TestWorkIsBounded refuses policies whose rules meet too many identities and ports, and gives up in time:
// without a limit these would take minutes and gigabytes.
func TestWorkIsBounded(t *testing.T) {
	var pods []policy.Pod
	for n := range 2000 {
		at := netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)})
		pods = append(pods, policy.Pod{Namespace: fmt.Sprint("n", n%2), Name: fmt.Sprint(n), Labels: map[string]string{
			"x": fmt.Sprint(n)}, Addresses: []netip.Addr{at}})
	}
	pods[0].Node, pods[1].Node = "node", "node"
	small := []policy.Policy{crossing("n0", "small", 10, 100), except("n0", "few", 300)}
	for name, c := range map[string]struct {
		policy  policy.Policy
		refused bool
	}{
		"ports of many ranges": {crossing("n1", "q", 4000, 6000), true},
		"rules for many pods":  {except("n1", "q", 8000), true},
		"fewer":                {except("n1", "q", 500), false},
	} {
		_, err := policy.Compile(policy.Snapshot{Node: "node", Policies: append(small, c.policy), Pods: pods}, policy.Rows{})
		var work *policy.LimitError
		testkit.Check(t, errors.As(err, &work) == c.refused, "%s: %v", name, err)
		if work != nil && work.Number > policy.MostWork+policy.MostWork/8 {
			t.Errorf("%s: work of %d, at most %d are allowed", name, work.Number, policy.MostWork)
		}
	}
}
