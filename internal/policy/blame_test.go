// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
)

// internet returns a policy that lets pods call all addresses, by rules that each have a port.
func internet(tier Tier, namespace, app string, rules int) Policy {
	p := Policy{Tier: tier, Namespace: namespace, Name: "internet" + app, IsolatesEgress: tier == Namespaced}
	if p.Subject = inNamespace(namespace); app != "" {
		p.Subject.Pods.Labels = map[string]string{"app": app}
	}
	for n := range rules {
		port := uint16(1000 + 2*n)
		p.Egress = append(p.Egress, Rule{
			Action: Accept, Ports: []Port{{Protocol: 6, First: port, Last: port}}, Peers: []Peer{{Block: &Block{CIDR: netip.MustParsePrefix("0.0.0.0/0")}}},
		})
	}
	if tier != Namespaced {
		p.Namespace, p.Name = "", "internet-"+namespace
	}
	return p
}

// addresses returns a policy of as many addresses, from 20.net.0.0.
func addresses(namespace, name string, net, n int) Policy {
	p := Policy{Tier: Namespaced, Namespace: namespace, Name: name, IsolatesIngress: true, Subject: inNamespace(namespace), Ingress: make([]Rule, 1)}
	for i := range n {
		at := netip.AddrFrom4([4]byte{20, byte(net + i>>16), byte(i >> 8), byte(i)})
		p.Ingress[0].Peers = append(p.Ingress[0].Peers, Peer{Block: &Block{CIDR: hostPrefix(at)}})
	}
	return p
}

// on returns a snapshot of a node with a pod for each app of a namespace.
func on(policies []Policy, apps map[string][]string) Snapshot {
	s := Snapshot{Node: "node", Policies: policies}
	for namespace, all := range apps {
		for _, app := range all {
			at := netip.AddrFrom4([4]byte{10, 0, byte(len(s.Pods) >> 8), byte(len(s.Pods))})
			s.Pods = append(s.Pods, Pod{
				Namespace: namespace, Name: app, Node: "node", Labels: map[string]string{"app": app}, Addresses: []netip.Addr{at},
			})
		}
	}
	return s
}

// names returns as many names.
func names(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprint(i))
	}
	return all
}

// bounds lowers what compiling may cost.
func bounds(t *testing.T, most int) {
	mostWork = most
	t.Cleanup(func() { mostWork = MostWork })
}

// TestRangesCostOthersLittle lets a tenant bring many ranges to a node where somebody else has many rules of all addresses: they cost as with
// one such rule.
func TestRangesCostOthersLittle(t *testing.T) {
	cost := func(rules int) int {
		c := NewCompiler(Rows{})
		s := on([]Policy{internet(Namespaced, "shop", "", rules), addresses("tenant", "evil", 0, 10_000)}, map[string][]string{"shop": {"a"}, "tenant": {"b"}})
		if _, err := c.Change(s); err != nil {
			t.Fatal(err)
		}
		return c.work
	}
	if one, many := cost(1), cost(200); many > one+one/20 {
		t.Errorf("ranges cost %d with one rule, %d with many", one, many)
	}
}

// TestWhoIsToBlame names whoever brings ranges to a node where many pods of others may call all addresses, whatever comes first and though
// the rules of the others are more; whoever has rules that are too much by themselves; and no ClusterNetworkPolicy before a NetworkPolicy.
func TestWhoIsToBlame(t *testing.T) {
	bounds(t, MostWork/16)
	apps := names(20)
	shop := map[string][]string{"shop": apps, "tenant": {"b"}}
	var internets, admins []Policy
	admin := map[string][]string{"tenant": {"b"}}
	for i, app := range apps {
		internets = append(internets, internet(Namespaced, "shop", app, 100))
		namespace := fmt.Sprint("team", i)
		admins = append(admins, internet(Admin, namespace, "", 20))
		admin[namespace] = []string{"a"}
	}
	evil := addresses("tenant", "evil", 0, 2_000)
	for name, c := range map[string]struct {
		policies []Policy
		apps     map[string][]string
		want     string
	}{
		"ranges last":         {append(slices.Clone(internets), evil), shop, "NetworkPolicy tenant/evil"},
		"ranges first":        {append([]Policy{evil}, internets...), shop, "NetworkPolicy tenant/evil"},
		"with the cluster's":  {append(slices.Clone(admins), evil), admin, "NetworkPolicy tenant/evil"},
		"too much by oneself": {[]Policy{addresses("shop", "list", 0, 5_000), crossing("tenant", "q", 200, 3000)}, shop, "NetworkPolicy tenant/q"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := NewCompiler(Rows{}).Change(on(c.policies, c.apps))
			var work *WorkError
			if !errors.As(err, &work) || work.Most.String() != c.want {
				t.Errorf("%v, not of %s", err, c.want)
			}
		})
	}
}

// TestFullest blames whoever brings ranges for the verdicts of others about these, though somebody else has more of his own.
func TestFullest(t *testing.T) {
	apps := names(30)
	all := Policy{Tier: Namespaced, Namespace: "shop", Name: "all", IsolatesIngress: true, Subject: inNamespace("shop")}
	all.Ingress = []Rule{{Action: Accept, Peers: []Peer{{Pods: &PodSelector{Namespaces: inNamespace("away").Namespaces}}}}}
	s := on([]Policy{all, addresses("tenant", "evil", 0, 3000)}, map[string][]string{"shop": apps, "tenant": {"b"}})
	for _, app := range apps {
		s.Policies = append(s.Policies, internet(Namespaced, "shop", app, 1))
	}
	for n := range 150 {
		app := fmt.Sprint(n)
		s.Policies[0].Ingress[0].Peers = append(s.Policies[0].Ingress[0].Peers, Peer{Pods: &PodSelector{Pods: Selector{Labels: map[string]string{"app": app}}}})
		s.Pods = append(s.Pods, Pod{Namespace: "away", Name: app, Labels: map[string]string{"app": app}, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, byte(n >> 8), byte(n)})}})
	}
	rows := func(r Rows) int { return len(r.Verdicts) }
	for verdicts, want := range map[bool]string{true: "tenant", false: "shop"} {
		if most := s.Fullest(rows, verdicts, 1<<30); !slices.Equal(most, []string{want}) {
			t.Errorf("%v: it is %s", verdicts, most)
		}
	}
}

// TestRuleSetsOfMany blames who has very many rule sets on a node for meeting the ranges of somebody else's usual list.
func TestRuleSetsOfMany(t *testing.T) {
	apps := names(100)
	policies := []Policy{addresses("shop", "list", 0, 1200)}
	for i, app := range apps {
		p := internet(Namespaced, "tenant", app, 500+i)
		p.IsolatesIngress, p.Ingress = true, p.Egress
		policies = append(policies, p)
	}
	_, err := NewCompiler(Rows{}).Change(on(policies, map[string][]string{"shop": {"a"}, "tenant": apps}))
	var work *WorkError
	if !errors.As(err, &work) || !slices.Equal(work.TooMany, []string{"tenant"}) {
		t.Errorf("%+v, %v", work, err)
	}
}

// TestTotal refuses what is too much work together with what is in force, though each of the changes is little, and takes what was accepted
// in one piece.
func TestTotal(t *testing.T) {
	bounds(t, MostWork/16)
	apps := names(8)
	for i := range apps {
		apps[i] = "s" + apps[i]
	}
	s := on(nil, map[string][]string{"shop": apps, "tenant": {"b"}})
	for _, app := range apps {
		s.Policies = append(s.Policies, internet(Namespaced, "shop", app, 2))
	}
	c := NewCompiler(Rows{})
	step := func(policies []Policy) error {
		next := s
		next.Policies = policies
		if _, err := c.Change(next); err != nil {
			return err
		}
		return c.Check(next)
	}
	for round := range 8 { // what goes costs nothing any more
		if err := step(append(slices.Clone(s.Policies), addresses("tenant", "list", 20*round, 1_000))); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
	}
	refused := error(nil)
	for n := 0; refused == nil && n < 10; n++ {
		if refused = step(append(slices.Clone(s.Policies), addresses("tenant", fmt.Sprint("more", n), 200+n, 800))); refused == nil {
			s.Policies = append(s.Policies, addresses("tenant", fmt.Sprint("more", n), 200+n, 800))
		}
	}
	var work *WorkError
	if !errors.As(refused, &work) || work.Most.Namespace != "tenant" {
		t.Errorf("%v", refused)
	}
	if len(s.Policies) == len(apps) {
		t.Error("nothing was accepted")
	}
	if _, err := Compile(s, Rows{}); err != nil {
		t.Errorf("what was accepted: %v", err)
	}
}

// TestJoin adds a pod to a node where all is more work than it may be, and refuses one whose own policies are too much.
func TestJoin(t *testing.T) {
	bounds(t, MostWork/16)
	apps := names(20)
	s := on(nil, map[string][]string{"shop": apps, "tenant": {"b"}})
	for _, app := range apps {
		s.Policies = append(s.Policies, internet(Namespaced, "shop", app, 2))
	}
	s.Policies = append(s.Policies, addresses("tenant", "evil", 0, 2_000), internet(Namespaced, "joining", "", 100), crossing("joins", "q", 200, 3000))
	for _, namespace := range []string{"joining", "joins"} {
		c := NewCompiler(Rows{})
		if err := c.Resume(s); err != nil {
			t.Fatal(err)
		}
		if err := c.Check(s); err == nil {
			t.Fatal("it is not too much work")
		}
		next := s
		next.Pods = append(slices.Clone(s.Pods), Pod{Namespace: namespace, Name: "p", Node: "node", Addresses: []netip.Addr{netip.MustParseAddr("10.9.0.1")}})
		err := c.Join(next)
		var work *WorkError
		if refused := errors.As(err, &work); refused != (namespace == "joins") || refused && work.Most.String() != "NetworkPolicy joins/q" || err != nil && !refused {
			t.Errorf("%s: %v", namespace, err)
		}
	}
}

// TestSelectorsOfNobody counts rules whose selectors match no pod: each term is looked at for each rule set, and each value is kept.
func TestSelectorsOfNobody(t *testing.T) {
	bounds(t, 1<<12)
	none := func(n int) Requirement {
		return Requirement{Key: "app", Operator: "In", Values: []string{fmt.Sprint("none", n)}}
	}
	for name, peers := range map[string]func(n int) []Peer{
		"peers": func(n int) (all []Peer) {
			for i := range n {
				all = append(all, Peer{Pods: &PodSelector{Pods: Selector{Requirements: []Requirement{none(i)}}}})
			}
			return all
		},
		"terms": func(n int) []Peer {
			all := Selector{Requirements: slices.Repeat([]Requirement{none(0)}, n)}
			return []Peer{{Pods: &PodSelector{Pods: all}}}
		},
		"values": func(n int) []Peer {
			all := none(0)
			for i := range 8 * n {
				all.Values = append(all.Values, fmt.Sprint(i))
			}
			all.Sort()
			return []Peer{{Pods: &PodSelector{Pods: Selector{Requirements: []Requirement{all}}}}}
		},
	} {
		p := Policy{Tier: Namespaced, Namespace: "tenant", Name: "nobody", IsolatesIngress: true, Subject: inNamespace("tenant"), Ingress: make([]Rule, 1)}
		policies := []Policy{p, internet(Namespaced, "shop", "a", 1)}
		for _, app := range names(9) {
			own := Policy{Tier: Namespaced, Namespace: "tenant", Name: "own" + app, IsolatesIngress: true, Subject: inNamespace("tenant")}
			own.Subject.Pods.Labels = map[string]string{"app": app}
			policies = append(policies, own)
		}
		s := on(policies, map[string][]string{"tenant": names(9), "shop": {"a"}})
		for n, want := range map[int]bool{50: false, 500: true} {
			policies[0].Ingress[0].Peers = peers(n)
			_, err := Compile(s, Rows{})
			var over *WorkError
			if errors.As(err, &over) != want || want && over.Most.Namespace != "tenant" {
				t.Errorf("%d %s: %v", n, name, err)
			}
		}
	}
}
