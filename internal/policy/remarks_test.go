// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"testing"

	"mustang/internal/service"
	"mustang/internal/testkit"
)

// TestRemarks reports policies that select no pod, and named ports that none of their selected pods has.
func TestRemarks(t *testing.T) {
	shop := Selector{Labels: map[string]string{NamespaceLabel: "shop"}}
	app := func(name string) PodSelector {
		return PodSelector{Namespaces: shop, Pods: Selector{Labels: map[string]string{"app": name}}}
	}
	named := func(names ...string) (rules []Rule) {
		for _, name := range names {
			rules = append(rules, Rule{Ports: []Port{{Name: name, Protocol: service.TCP}}})
		}
		return rules
	}
	s := Snapshot{
		Namespaces: []Namespace{{Name: "shop"}},
		Pods: []Pod{
			{Namespace: "shop", Name: "web-1", Labels: map[string]string{"app": "web"}, Node: "far"},
			{Namespace: "shop", Name: "web-2", Labels: map[string]string{"app": "web"},
				Ports: []NamedPort{{Name: "http", Protocol: service.TCP, Port: 80}}},
			{Namespace: "shop", Name: "db", Labels: map[string]string{"app": "db"},
				Ports: []NamedPort{{Name: "sql", Protocol: service.TCP, Port: 5432}}},
			{Namespace: "shop", Name: "host", Labels: map[string]string{"app": "host"}, HostNetwork: true},
			{Namespace: "other", Name: "api", Labels: map[string]string{"app": "api"}},
		},
	}
	for what, test := range map[string]struct {
		policy Policy
		want   string
	}{
		"a pod of another node": {Policy{Subject: app("web")}, "[]"},
		"no pod": {Policy{Subject: app("wbe"), Ingress: named("http")},
			"[selects no pod of the cluster]"},
		"a pod of another namespace":  {Policy{Subject: app("api")}, "[selects no pod of the cluster]"},
		"a pod with the node's":       {Policy{Subject: app("host")}, "[selects no pod of the cluster]"},
		"a port that one of them has": {Policy{Subject: app("web"), Ingress: named("http")}, "[]"},
		"a port of another pod": {Policy{Subject: app("web"), Ingress: named("http", "sql")},
			`[no pod that it selects has the port "sql"]`},
		"a port of the peers": {Policy{Subject: app("web"), Egress: named("sql")}, "[]"},
	} {
		s.Policies = []Policy{test.policy}
		have := fmt.Sprint(s.Remarks()[0])
		testkit.Check(t, have == test.want, "%s: %s, want %s", what, have, test.want)
	}
}
