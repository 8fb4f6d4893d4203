// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"net/netip"
	"testing"

	"mustang/internal/testkit"
)

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
