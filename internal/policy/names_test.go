// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"

	"mustang/internal/service"
	"mustang/internal/testkit"
)

func TestPodOfKubernetes(t *testing.T) {
	long := strings.Repeat("a", 63)
	label := func(key, value string) Pod { return Pod{Namespace: "n", Labels: map[string]string{key: value}} }
	for _, p := range []Pod{
		{Namespace: "a"}, {Namespace: "0-a"}, {Namespace: long}, {Namespace: "n", Name: "web-0.shop"},
		{Namespace: "n", Name: long + long},
		{Namespace: "n", Name: long + "." + long + "." + long + "." + long[:61]},
		label("app", ""), label("App_1.x", "Web_1.x-Y"), label("app.kubernetes.io/name", "web"), label(long+"."+long+"/"+
			long, long),
	} {
		err := p.Validate()
		testkit.Check(t, err == nil, "%+v: %v", p, err)
	}
	for _, c := range []struct {
		Pod
		culprit string
	}{
		{Pod{}, `namespace ""`},
		{Pod{Namespace: "Shop"}, `namespace "Shop"`},
		{Pod{Namespace: "a_b"}, `namespace "a_b"`},
		{Pod{Namespace: "a.b"}, `namespace "a.b"`},
		{Pod{Namespace: "-a"}, `namespace "-a"`},
		{Pod{Namespace: "a-"}, `namespace "a-"`},
		{Pod{Namespace: "ä"}, `namespace "ä"`},
		{Pod{Namespace: "a\n"}, `namespace "a\n"`},
		{Pod{Namespace: long + "a"}, `namespace "aaaa`},
		{Pod{Namespace: "n", Name: "Web"}, `pod "Web"`},
		{Pod{Namespace: "n", Name: "a..b"}, `pod "a..b"`},
		{Pod{Namespace: "n", Name: "a.-b"}, `pod "a.-b"`},
		{Pod{Namespace: "n", Name: long + "." + long + "." + long + "." + long[:62]}, `pod "aaaa`},
		{label("", "x"), `label ""`},
		{label("a b", "x"), `label "a b"`},
		{label("-a", "x"), `label "-a"`},
		{label("a/b/c", "x"), `label "a/b/c"`},
		{label("/a", "x"), `label "/a"`},
		{label("a/", "x"), `label "a/"`},
		{label("A.io/a", "x"), `label "A.io/a"`},
		{label(long+"a", "x"), `label "aaaa`},
		{label("app", "a b"), `label "app": value "a b"`},
		{label("app", ".a"), `label "app": value ".a"`},
		{label("app", "a/b"), `label "app": value "a/b"`},
		{label("app", long+"a"), `label "app": value "aaaa`},
	} {
		if err := c.Validate(); err == nil || !strings.HasPrefix(err.Error(), c.culprit) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: %v, want %s", c.Pod, err, c.culprit)
		}
	}
}

// TestNamesAsKubernetes compares with the rules of Kubernetes themselves, which would cost the CNI plugin time at each
// start.
func TestNamesAsKubernetes(t *testing.T) {
	g := generator{rand.New(rand.NewPCG(1, 5))}
	accepted := map[string]int{}
	for range 5_000 {
		var text strings.Builder
		for range g.IntN(6) {
			text.WriteString(one(g, "a", "b", "Z", "0", "-", "_", ".", "/", " ", "\n", "ä", strings.Repeat("x", 31),
				strings.Repeat("y.", 62)))
		}
		s := text.String()
		for _, c := range []struct {
			what string
			pod  Pod
			says []string
		}{
			{"namespace", Pod{Namespace: s}, validation.IsDNS1123Label(s)},
			{"name", Pod{Namespace: "n", Name: "a" + s}, validation.IsDNS1123Subdomain("a" + s)},
			{"key", Pod{Namespace: "n", Labels: map[string]string{s: ""}}, validation.IsQualifiedName(s)},
			{"value", Pod{Namespace: "n", Labels: map[string]string{"k": s}}, validation.IsValidLabelValue(s)},
		} {
			err := c.pod.Validate()
			testkit.Require(t, (err == nil) == (len(c.says) == 0), "%s %q: %v, Kubernetes says %q", c.what, s, err, c.says)
			if err == nil {
				accepted[c.what]++
			}
		}
	}
	for _, what := range []string{"namespace", "name", "key", "value"} {
		testkit.Check(t, accepted[what] >= 100, "%d times a valid %s", accepted[what], what)
	}
}

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
