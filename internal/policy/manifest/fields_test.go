// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"mustang/internal/policy"
	"mustang/internal/testkit"
)

// TestFieldsOfObjects has fields beside spec and in metadata. ReadFile refuses fields that Kubernetes does not have.
// Read accepts them, since a version of the cluster may add some.
func TestFieldsOfObjects(t *testing.T) {
	const version = "apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, "
	for text, want := range map[string]string{
		"{" + version +
			"metadata: {name: x, namspace: shop}, spec: {podSelector: {}}}": "document 1: NetworkPolicy default/x: metadata.namspace: unknown field",
		"{" + version +
			"metadata: {name: x}, spec: {podSelector: {}}, specs: {}}": "document 1: NetworkPolicy default/x: specs: unknown field",
		"{apiVersion: v1, kind: Pod, metadata: {name: x, label: {a: b}}, spec: {hostNetwork: true}}":       "document 1: Pod default/x: metadata.label: unknown field",
		"{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: Namespace, metadata: {names: [x]}}]}": "document 1: items[0]: Namespace : metadata.names: unknown field",
		"{" + version +
			"metadata: {name: x}, spec: {podSelector: {matchLabels: {a b: c}}}}": "document 1: NetworkPolicy default/x: selector: label " +
			`"a b": want at most 63 of letters, digits, -, _ and ., a letter or digit first and last`,
	} {
		text = "---\n" + text
		_, err := ReadFile(strings.NewReader(text))
		testkit.Check(t, err != nil && err.Error() == want, "%s: %v, want %s", text, err, want)
		_, err = Read(strings.NewReader(text))
		testkit.Check(t, err == nil || !strings.Contains(err.Error(), "unknown"), "%s of a cluster: %v", text, err)
	}
	const whole = `---
{apiVersion: v1, kind: List, metadata: {resourceVersion: ""}, items: [{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {
  name: x, generateName: x-, namespace: shop, selfLink: /a, uid: b, resourceVersion: "1", generation: 1, creationTimestamp: "2026-01-02T03:04:05Z",
  deletionTimestamp: "2026-01-02T03:04:05Z", deletionGracePeriodSeconds: 1, labels: {a: b}, annotations: {a: b}, ownerReferences: [{kind: A}], finalizers: [a],
  managedFields: [{manager: kubectl, fieldsV1: {"f:spec": {}}}]}, spec: {podSelector: {}}, status: {}}]}
`
	set, err := ReadFile(strings.NewReader(whole))
	testkit.Check(t, err == nil && len(set.Snapshot.Policies) == 1 && len(set.Notes) == 0, "%v, %v", set, err)
}

// TestSubjects has subjects that are empty, have too much, or are invalid. One line names the valid forms.
func TestSubjects(t *testing.T) {
	for _, subject := range []string{"", "subject: {}", "subject: {namespaces: {}, pods: {}}", "subject: {nodes: {}}",
		"subject: {networks: [10.0.0.0/8]}"} {
		text := "---\n{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {name: x}, " +
			"spec: {tier: Admin, priority: 1, " + subject + "}}"
		const want = "document 1: ClusterNetworkPolicy x: spec.subject: want either namespaces or pods"
		_, err := Read(strings.NewReader(text))
		testkit.Check(t, err != nil && err.Error() == want, "%q: %v, want %s", subject, err, want)
	}
}

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

// TestPodStaysTheSame reads a pod many times: its named ports stay too, with a sidecar's after the others.
func TestPodStaysTheSame(t *testing.T) {
	const pod = `{"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "shop", "name": "web"}, "spec": {
"containers": [{"ports": [{"name": "http", "containerPort": 80}]}],
"initContainers": [{"ports": [{"name": "once", "containerPort": 81}]}, {"restartPolicy": "Always", "ports": [{"name": "mesh", "containerPort": 82}]}]}}`
	for range 50 {
		set := testkit.Must(Read(strings.NewReader(pod)))(t)
		var names []string
		for _, p := range set.Snapshot.Pods[0].Ports {
			names = append(names, p.Name)
		}
		testkit.Require(t, reflect.DeepEqual(names, []string{"http", "mesh"}), "named ports are %q", names)
	}
}
