// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"testing"

	"mustang/internal/service"
	"mustang/internal/testkit"
)

// excepting returns a policy with blocks of all addresses, each with another exception.
func excepting(name string, from, n int) Policy {
	p := Policy{Tier: Namespaced, Namespace: "n", Name: name, IsolatesIngress: true, Ingress: make([]Rule, 1)}
	for i := from; i < from+n; i++ {
		out := netip.PrefixFrom(netip.AddrFrom4([4]byte{203, byte(i >> 16), byte(i >> 8), byte(i)}), 32)
		p.Ingress[0].Peers = append(p.Ingress[0].Peers, Peer{Block: &Block{CIDR: netip.PrefixFrom(netip.IPv4Unspecified(), 0),
			Except: []netip.Prefix{out}}})
	}
	return p
}

// TestOverlaps refuses blocks that overlap too much, of one policy and of several, unless they select no pod of this
// node.
func TestOverlaps(t *testing.T) {
	pod := Pod{Namespace: "n", Name: "a", Node: "node", Labels: map[string]string{"app": "a"},
		Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}
	elsewhere := excepting("elsewhere", 0, 4000)
	elsewhere.Subject.Pods.Labels = map[string]string{"app": "b"}
	for what, c := range map[string]struct {
		policies []Policy
		refused  string
	}{
		"one":       {[]Policy{excepting("q", 0, 4000), excepting("small", 0, 2)}, "NetworkPolicy n/q"},
		"two":       {[]Policy{excepting("q", 0, 300), excepting("r", 300, 310)}, "NetworkPolicy n/r"},
		"the same":  {[]Policy{excepting("q", 0, 400), excepting("r", 0, 400)}, ""},
		"elsewhere": {[]Policy{excepting("q", 0, 400), elsewhere}, ""},
	} {
		s := Snapshot{Node: "node", Policies: c.policies, Pods: []Pod{pod}}
		_, err := Compile(s, Rows{})
		var over *LimitError
		if refused := errors.As(err, &over); refused != (c.refused != "") || refused && (over.Largest.String() != c.refused ||
			over.Number <= MostOverlaps) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestReplaceTooMuch begins with policies that overlap too much and are in force: they can be replaced by others.
func TestReplaceTooMuch(t *testing.T) {
	pod := Pod{Namespace: "n", Name: "a", Node: "node", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}
	old := Snapshot{Node: "node", Policies: []Policy{excepting("q", 0, 600)}, Pods: []Pod{pod}}
	now := Snapshot{Node: "node", Policies: []Policy{excepting("q", 0, 500)}, Previous: &old, Pods: []Pod{pod}}
	_, err := Steps(now, Rows{}, Limits{Work: MostWork})
	testkit.Check(t, err == nil, "%v", err)
}

// TestRelabelHasNoGap relabels a pod of this node: one ClusterNetworkPolicy denies it a peer before, another one with
// other selectors after. The peer does not reach it between two writes, though only the second distinguishes some
// peers.
func TestRelabelHasNoGap(t *testing.T) {
	with := func(k, v string) Selector { return Selector{Labels: map[string]string{k: v}} }
	deny := func(name string, subject Selector, peer Peer) Policy {
		return Policy{Tier: Admin, Name: name, Subject: PodSelector{Pods: subject},
			Ingress: []Rule{{Action: Deny, Peers: []Peer{peer}}}}
	}
	own, peer := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	for name, second := range map[string]Peer{
		"namespace": {Pods: &PodSelector{Namespaces: with(NamespaceLabel, "m")}},
		"label":     {Pods: &PodSelector{Pods: Selector{Requirements: []Requirement{{Key: "app", Operator: "Exists"}}}}},
		"range":     {Block: &Block{CIDR: netip.MustParsePrefix("10.0.0.2/31")}},
	} {
		t.Run(name, func(t *testing.T) {
			snapshot := func(role string) Snapshot {
				return Snapshot{Node: "here", Policies: []Policy{
					deny("one", with("role", "1"), Peer{Pods: &PodSelector{Pods: with("app", "x")}}),
					deny("two", with("role", "2"), second),
				}, Pods: []Pod{
					{Namespace: "n", Name: "own", Node: "here", Labels: map[string]string{"role": role}, Addresses: []netip.Addr{own}},
					{Namespace: "m", Name: "peer", Node: "far", Labels: map[string]string{"app": "x"}, Addresses: []netip.Addr{peer}},
				}}
			}
			before := snapshot("1")
			rows := testkit.Must(Compile(before, Rows{}))(t)
			writes := 0
			check := func() {
				t.Helper()
				_, d := rows.lookup(Flow{Source: peer, Destination: own, Protocol: service.TCP, Port: 80}, nil)
				testkit.Check(t, !d.Allow, "after %d writes the peer reaches the pod: %v", writes, d)
				writes++
			}
			check()
			for _, role := range []string{"2", "1"} {
				now := snapshot(role)
				now.Previous = &before
				follow(t, &rows, now, check)
				before = snapshot(role)
			}
		})
	}
}

// TestShare gives equal labels of objects one map, and changes none.
func TestShare(t *testing.T) {
	web := func() map[string]string { return map[string]string{"app": "web", "tier": "front"} }
	selects := func(labels map[string]string) PodSelector { return PodSelector{Pods: Selector{Labels: labels}} }
	peer := selects(web())
	of := func() Snapshot {
		return Snapshot{
			Nodes: []Node{{Labels: web()}}, Namespaces: []Namespace{{Labels: map[string]string{}}}, Pods: []Pod{{Labels: web()},
				{Labels: map[string]string{"app": "web"}}},
			Policies: []Policy{{Subject: selects(web()),
				Egress: []Rule{{Peers: []Peer{{Pods: &peer}, {Nodes: &Selector{Labels: web()}}, {Block: &Block{}}}}}}},
		}
	}
	first, second := of(), of()
	shared := map[Digest]map[string]string{}
	first.Share(shared)
	second.Share(shared)
	testkit.Check(t, reflect.DeepEqual(second, of()) && len(shared) == 2,
		"of %d different labels there is %+v", len(shared), second)
	at := func(labels map[string]string) uintptr { return reflect.ValueOf(labels).Pointer() }
	peers := second.Policies[0].Egress[0].Peers
	for _, labels := range []map[string]string{second.Nodes[0].Labels, second.Pods[0].Labels,
		second.Policies[0].Subject.Pods.Labels, peers[0].Pods.Pods.Labels, peers[1].Nodes.Labels} {
		testkit.Check(t, at(labels) == at(first.Pods[0].Labels), "equal labels are there twice")
	}
}

// TestTrim drops objects that no policy names, and does not change the rows.
func TestTrim(t *testing.T) {
	own := map[string]string{"app": "db", "zone": "x"}
	for i := range 9000 {
		own[fmt.Sprint("k", i)] = "v"
	}
	at := func(i byte) []netip.Addr { return []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, i})} }
	db := PodSelector{Pods: Selector{Labels: map[string]string{"app": "db"}}}
	asks := Policy{Tier: Namespaced, Namespace: "n", Name: "asks", Subject: db, IsolatesIngress: true}
	asks.Subject.Namespaces.Requirements = []Requirement{{Key: "team", Operator: "Exists"}}
	asks.Ingress = []Rule{{Peers: []Peer{{Pods: &db}, {Nodes: &Selector{Labels: map[string]string{"role": "x"}}}},
		Ports: []Port{{Protocol: 6, Name: "web"}}}}
	s := Snapshot{
		Node: "here", Policies: []Policy{asks},
		Namespaces: []Namespace{{Name: "n", Labels: map[string]string{"team": "a", "other": "b"}}},
		Nodes:      []Node{{Name: "far", Labels: map[string]string{"role": "x", "other": "b"}, Addresses: at(9)}},
		Pods: []Pod{
			{Namespace: "n", Name: "unscheduled", Labels: own},
			{Namespace: "n", Name: "far", Node: "far", Labels: own, Addresses: at(1), Ports: []NamedPort{{"web", 6, 80},
				{"other", 6, 81}}},
			{Namespace: "n", Name: "large", Node: "here", Labels: own, Addresses: at(2)},
			{Namespace: "n", Name: "starting", Node: "here", Labels: map[string]string{"app": "db", "free": "y"}},
		},
	}
	before := testkit.Must(Compile(s, Rows{}))(t)
	s.Trim("here")
	after := testkit.Must(Compile(s, before))(t)
	d := Diff(before, after)
	testkit.Check(t, len(before.Verdicts) != 0 && d.Len() == 0, "there were %+v, and there are %+v", before, after)
	for what, ok := range map[string]bool{
		"unscheduled": len(s.Pods) == 3, "far": fmt.Sprint(s.Pods[0].Labels, s.Pods[0].Ports) == "map[app:db] [{web tcp 80}]",
		"large":     len(s.Pods[1].Labels) == spareLabels && s.Pods[1].Labels["app"] == "db",
		"starting":  len(s.Pods[2].Labels) == 2,
		"node":      fmt.Sprint(s.Nodes[0].Labels) == "map[role:x]",
		"namespace": fmt.Sprint(s.Namespaces[0].Labels) == "map[team:a]", "copies": len(own) == 9002,
	} {
		testkit.Check(t, ok, "%s: there is %+v", what, s)
	}
}

// TestPeersOfDenials has a policy that selects no pod of the node: its rules match pods elsewhere only if they do not
// accept, since a pod that comes later would be open to them.
func TestPeersOfDenials(t *testing.T) {
	x := PodSelector{Pods: Selector{Labels: map[string]string{"app": "x"}}}
	far := Pod{Namespace: "n", Name: "far", Labels: map[string]string{"app": "x"}}
	for action, want := range map[Action]bool{Accept: false, Deny: true, Pass: true} {
		s := Snapshot{Policies: []Policy{{Tier: Admin, Name: "p", Subject: x,
			Egress: []Rule{{Action: action, Peers: []Peer{{Pods: &x}}}}}}}
		testkit.Check(t, s.Peers().Has(&far, nil) == want && s.Peers().None() != want, "action %d: want %t", action, want)
	}
}

// TestTrimForPrevious keeps labels that the policies still in force name: without them, these policies would match
// other pods in the meantime.
func TestTrimForPrevious(t *testing.T) {
	in := Selector{Labels: map[string]string{NamespaceLabel: "shop"}}
	missing := Selector{Requirements: []Requirement{{Key: "quarantine", Operator: "DoesNotExist"}}}
	web := Policy{Tier: Namespaced, Namespace: "shop", Name: "web", IsolatesIngress: true,
		Subject: PodSelector{Namespaces: in}}
	web.Ingress = []Rule{{Action: Accept, Peers: []Peer{{Pods: &PodSelector{Pods: missing}}}}}
	stripped := web
	stripped.Ingress = nil
	far := Pod{Namespace: "away", Name: "far", Node: "there", Labels: map[string]string{"quarantine": "yes"},
		Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.3")}}
	for _, previous := range []*Snapshot{nil, {Policies: []Policy{web}}} {
		s := Snapshot{Node: "here", Pods: []Pod{far}, Policies: []Policy{stripped}, Previous: previous}
		if s.Trim("here"); (len(s.Pods[0].Labels) == 1) != (previous != nil) {
			t.Errorf("previous %v: it keeps %v", previous, s.Pods[0].Labels)
		}
	}
}
