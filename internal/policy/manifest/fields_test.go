// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"strings"
	"testing"

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
