// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"fmt"
	"strings"
	"testing"

	"mustang/internal/policy"
	"mustang/internal/testkit"
)

// TestClosed closes pods selected by policies that Read refuses. Unreadable parts count as the widest value.
func TestClosed(t *testing.T) {
	const web, none, all = "web", "", "everything"
	for _, c := range []struct {
		namespace, spec string
		pods            string // the application that it selects
		ingress, egress bool
		tier            policy.Tier
		priority        uint16
	}{
		{"shop", `{"podSelector": {"matchLabels": {"app": "web"}}, "later": 1}`, web, true, false, 0, 0},
		{"shop", `{"podSelector": {"matchLabels": {"app": "web"}}, "egress": [{"later": 1}]}`, web, true, true, 0, 0},
		{"shop", `{"podSelector": {"matchLabels": {"app": "web"}}, "egress": [], "later": 1}`, web, true, false, 0, 0},
		{"shop", `{"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Egress"], "ingress": [{"from": 7}]}`, web,
			false, true, 0, 0},
		{"shop", `{"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Egress", "Later"]}`, web, false,
			true, 0, 0},
		{"shop", `{"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Later"]}`, web, true, true, 0, 0},
		{"shop", `{"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": "Ingress"}`, web, true, true, 0, 0},
		{"shop", `{"podSelector": {"matchLabels": {"app": "web"}, "later": 1}, "policyTypes": ["Ingress"]}`, none, true,
			false, 0, 0},
		{"shop", `{"podSelector": {"matchLabels": {"app": 7}}, "policyTypes": ["Ingress"]}`, none, true, false, 0, 0},
		{"shop", `{"podSelector": {"matchExpressions": [{"key": "app", "operator": "Later"}]}, "policyTypes": ["Ingress"]}`,
			none, true, false, 0, 0},
		{"shop", `7`, none, true, true, 0, 0},
		{"", `{"tier": "Baseline", "priority": 9, "subject": {"pods": {"podSelector": {"matchLabels": {"app": "web"}}}}, ` +
			`"ingress": [{"later": 1}]}`, web, true, false, policy.Baseline, 9},
		{"", `{"tier": "Admin", "priority": 9, "subject": {"pods": {"podSelector": {"matchLabels": {"app": "web"}}}}, ` +
			`"egress": 7}`, web, false, true, policy.Admin, 9},
		{"", `{"tier": "Later", "priority": 9999, "subject": {"later": {}}, "later": 1}`, all, true, true, policy.Admin, 0},
		{"", `null`, all, true, true, policy.Admin, 0},
	} {
		kind := map[bool]string{true: `"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy"`,
			false: `"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy"`}[c.namespace == ""]
		object := fmt.Sprintf(`{%s, "metadata": {"namespace": %q, "name": "x"}, "spec": %s}`, kind, c.namespace, c.spec)
		if _, err := Read(strings.NewReader(object)); err == nil {
			t.Errorf("%s: it can be read", c.spec)
		}
		p, err := Closed(c.namespace, "x", []byte(object))
		testkit.Check(t, err == nil, "%s: %v", c.spec, err)
		if c.namespace != "" {
			c.tier = policy.Namespaced
		}
		namespace := p.Subject.Namespaces.Labels[policy.NamespaceLabel]
		if p.Concerns(policy.Ingress) != c.ingress || p.Concerns(policy.Egress) != c.egress || p.Tier != c.tier ||
			p.Priority != c.priority ||
			c.pods == web != (p.Subject.Pods.Labels["app"] == "web") || namespace != c.namespace {
			t.Errorf("%s: %+v", c.spec, p)
		}
		for _, r := range append(p.Ingress, p.Egress...) {
			testkit.Check(t, r.Action == policy.Deny && r.Peers == nil && r.Ports == nil, "%s: rule %+v", c.spec, r)
		}
	}
	p, err := Closed("shop", "Not A Name", []byte(`{}`))
	testkit.Check(t, err != nil, "a name that nothing can have: %+v", p)
}
