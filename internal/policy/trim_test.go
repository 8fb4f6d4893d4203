// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"maps"
	"net/netip"
	"testing"

	"mustang/internal/testkit"
)

// TestTrim drops what no policy asks for, and leaves the rows as they are.
func TestTrim(t *testing.T) {
	many := map[string]string{}
	for i := range 9000 {
		many[fmt.Sprint("k", i)] = "v"
	}
	own := maps.Clone(many)
	own["app"], own["zone"] = "db", "x"
	at := func(i byte) []netip.Addr { return []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, i})} }
	labels := func(key string) PodSelector {
		return PodSelector{Pods: Selector{Labels: map[string]string{key: own[key]}}}
	}
	asks := Policy{Tier: Namespaced, Namespace: "n", Name: "asks", Subject: labels("app"), IsolatesIngress: true}
	asks.Subject.Namespaces.Requirements = []Requirement{{Key: "team", Operator: "Exists"}}
	from := labels("app")
	asks.Ingress = []Rule{{Peers: []Peer{{Pods: &from}, {Nodes: &Selector{Labels: map[string]string{"role": "x"}}}},
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
	if cut := s.Trim("here"); len(cut) > 0 {
		t.Errorf("it cut %v", cut)
	}
	after := testkit.Must(Compile(s, Rows{}))(t)
	if len(before.Verdicts) == 0 || len(after.Verdicts) != len(before.Verdicts) ||
		len(after.Addresses) != len(before.Addresses) {
		t.Errorf("there were %+v, and there are %+v", before, after)
	}
	for what, ok := range map[string]bool{
		"unscheduled": len(s.Pods) == 3, "far": fmt.Sprint(s.Pods[0].Labels, s.Pods[0].Ports) == "map[app:db] [{web tcp 80}]",
		"large": len(s.Pods[1].Labels) == MostLabels && s.Pods[1].Labels["app"] == "db", "starting": len(
			s.Pods[2].Labels) == 2,
		"node": fmt.Sprint(s.Nodes[0].Labels) == "map[role:x]", "namespace": fmt.Sprint(
			s.Namespaces[0].Labels) == "map[team:a]", "copies": len(own) == 9002,
	} {
		if !ok {
			t.Errorf("%s: there is %+v", what, s)
		}
	}
	asksAll := Policy{Tier: Namespaced, Namespace: "other", Name: "all"}
	for key := range many {
		asksAll.Subject.Pods.Requirements = append(asksAll.Subject.Pods.Requirements,
			Requirement{Key: key, Operator: "Exists"})
	}
	cluster := Policy{Tier: Admin, Name: "cluster", Subject: labels("zone")}
	s.Policies = []Policy{asksAll, cluster}
	s.Pods = []Pod{{Namespace: "n", Name: "far", Node: "far", Labels: own, Addresses: at(1)}}
	if cut := s.Trim("here"); len(cut) != 1 || len(s.Pods[0].Labels) != 1+MostLabels || s.Pods[0].Labels["zone"] != "x" {
		t.Errorf("it cut %v, and there is %+v", cut, s.Pods)
	}
}

// TestLabelsOfOwnPolicies has policies of another namespace name more labels than a pod keeps: it keeps those by which
// policies of its own namespace select it.
func TestLabelsOfOwnPolicies(t *testing.T) {
	pod := Pod{Namespace: "shop", Name: "db", Node: "here", Labels: map[string]string{"role": "db"},
		Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}
	var names Selector
	for i := range MostLabels + 5 {
		key := fmt.Sprintf("a%02d", i)
		pod.Labels[key] = "x"
		names.Requirements = append(names.Requirements, Requirement{Key: key, Operator: "Exists"})
	}
	in := func(name string) Selector { return Selector{Labels: map[string]string{NamespaceLabel: name}} }
	own := Policy{Tier: Namespaced, Namespace: "shop", Name: "db", IsolatesIngress: true, Subject: PodSelector{in("shop"),
		Selector{Labels: map[string]string{"role": "db"}}}}
	other := Policy{Tier: Namespaced, Namespace: "tenant", Name: "names", IsolatesIngress: true,
		Subject: PodSelector{in("tenant"), names}}
	for _, peers := range [][]Peer{nil, {{Pods: &PodSelector{Pods: names}}}} {
		if other.Ingress = nil; peers != nil {
			other.Ingress = []Rule{{Action: Accept, Peers: peers}}
		}
		s := Snapshot{Node: "here", Pods: []Pod{pod}, Policies: []Policy{own, other}}
		if cut := s.Trim("here"); len(cut) > 0 != (peers != nil) {
			t.Errorf("%d pods lack labels that are named", len(cut))
		}
		if labels := s.Pods[0].Labels; labels["role"] != "db" || len(labels) < MostLabels {
			t.Errorf("it keeps %v", labels)
		}
	}
	restricts := Policy{Tier: Namespaced, Namespace: "other", Name: "restricts", IsolatesIngress: true,
		Subject: PodSelector{Namespaces: in("other")}}
	restricts.Ingress = []Rule{{Action: Accept,
		Peers: []Peer{{Pods: &PodSelector{Pods: Selector{Requirements: []Requirement{{Key: "z-restricted",
			Operator: "DoesNotExist"}}}}}}}}
	pod.Labels["z-restricted"] = "yes"
	for _, by := range []string{"shop", "tenant"} { // whoever names the others
		other.Namespace, other.Subject.Namespaces = by, in(by)
		guarded := Pod{Namespace: "other", Name: "guarded", Node: "here",
			Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.2")}}
		other.Subject.Pods = Selector{}
		half := other // a policy has at most 64 keys
		half.Name, half.Ingress = "half",
			[]Rule{{Action: Accept, Peers: []Peer{{Pods: &PodSelector{Pods: Selector{Requirements: names.Requirements[:40]}}}}}}
		other.Ingress = []Rule{{Action: Accept,
			Peers: []Peer{{Pods: &PodSelector{Pods: Selector{Requirements: names.Requirements[40:]}}}}}}
		s := Snapshot{Node: "here", Pods: []Pod{pod, guarded}, Policies: []Policy{restricts, other, half}}
		s.Trim("here")
		rows := testkit.Must(Compile(s, Rows{}))(t)
		if _, d := rows.Lookup(Flow{Source: pod.Addresses[0], Destination: guarded.Addresses[0], Protocol: 6,
			Port: 80}); d.Allow {
			t.Errorf("by labels that %s names a pod lacks one that must be absent: %v", by, d)
		}
	}
}

// TestTrimForPrevious keeps labels that policies name which are in force until the others are: without them these would
// tell pods apart otherwise meanwhile.
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
