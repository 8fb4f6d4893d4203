// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"reflect"
	"strings"
	"testing"

	"mustang/internal/policy"
	"mustang/internal/testkit"
)

// bad is documents that are refused.
var bad = []struct{ text, want string }{
	{"", "it is empty"},
	{"a: 1", "document 1: kind: missing"},
	{"[]", "document 1: want an object, got a list"},
	{
		networkPolicy("x", "podSelectr: {}"),
		"document 1: NetworkPolicy default/x: spec.podSelectr: unknown field",
	},
	{"{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: x}}",
		"document 1: NetworkPolicy default/x: spec: missing"},
	{"{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, spec: {}}",
		"document 1: NetworkPolicy default/: metadata.name: missing"},
	{"{apiVersion: extensions.networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: x}}",
		"apiVersion: unknown version extensions.networking.k8s.io/v1"},
	{"{apiVersion: policy.networking.k8s.io/v1alpha1, kind: AdminNetworkPolicy, metadata: {name: x}}",
		"AdminNetworkPolicy default/x: apiVersion: unknown version policy"},
	{
		networkPolicy("x", "") + networkPolicy("x", ""),
		"document 2: NetworkPolicy default/x: it is there already: document 1: NetworkPolicy default/x",
	},
	{networkPolicy("x", "ingress: {}"), "document 1: NetworkPolicy default/x: spec.ingress: want a list, got an object"},
	{networkPolicy("x", "policyTypes: [ingress]"), `x: spec.policyTypes[0]: "ingress": want Ingress or Egress`},
	{
		networkPolicy("x", "podSelector: {matchExpressions: [{key: a, operator: Is}]}"),
		`spec.podSelector.matchExpressions[0]: operator: "Is": want In, NotIn, Exists or DoesNotExist`,
	},
	{networkPolicy("x", "ingress: [{from: [{}]}]"), "spec.ingress[0].from[0].podSelector: missing"},
	{networkPolicy("x", "ingress: [{}, {from: [{ipBlock: {cidr: 10.0.0.0/33}}]}]"),
		`spec.ingress[1].from[0].ipBlock.cidr: netip.ParsePrefix("10.0.0.0/33"): prefix length`},
	{networkPolicy("x", "ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8}, podSelector: {}}]}]"),
		"from[0].ipBlock: it cannot be with"},
	{
		networkPolicy("x", "egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.0.0.0/8]}}]}]"),
		"spec.egress[0].to[0].ipBlock.except[0]: 10.0.0.0/8 is not a smaller range inside 10.0.0.0/8",
	},
	{networkPolicy("x", "ingress: [{ports: [{protocol: tcp}]}]"),
		`spec.ingress[0].ports[0].protocol: "tcp": want TCP, UDP or SCTP`},
	{networkPolicy("x", "ingress: [{ports: [{port: 65536}]}]"), "spec.ingress[0].ports[0].port: 65536: want 1 to 65535"},
	{networkPolicy("x", "ingress: [{ports: [{port: [1]}]}]"), "ports[0].port: want a number or a name"},
	{networkPolicy("x", "ingress: [{ports: [{port: 80, endPort: 79}]}]"), "ports[0].endPort: 79 is less than port 80"},
	{networkPolicy("x", "ingress: [{ports: [{port: web, endPort: 79}]}]"), "ports[0].endPort: port has to be a number"},
	{networkPolicy("x", "ingress: [{ports: [{endPort: 79}]}]"), "ports[0].endPort: port has to be a number"},
	{clusterPolicy("c", "Middle", 0, ""),
		`document 1: ClusterNetworkPolicy c: spec.tier: "Middle": want Admin or Baseline`},
	{clusterPolicy("c", "Admin", 1001, ""), "spec.priority: 1001: want 0 to 1000"},
	{clusterPolicy("c", "Admin", 0, "ingress: [{action: Accept}]"), "spec.ingress[0].from: missing"},
	{clusterPolicy("c", "Admin", 0, "ingress: [{action: Allow, from: [{namespaces: {}}]}]"),
		`spec.ingress[0].action: "Allow": want Accept`},
	{clusterPolicy("c", "Admin", 0, "ingress: [{action: Deny, from: [{networks: [10.0.0.0/8]}]}]"),
		"spec.ingress[0].from[0]: want either namespaces or pods"},
	{clusterPolicy("c", "Admin", 0, "ingress: [{action: Deny, from: [{namespaces: {}, pods: {}}]}]"),
		"spec.ingress[0].from[0]: want either namespaces or pods"},
	{clusterPolicy("c", "Admin", 0, "egress: [{action: Deny, to: [{}]}]"), "spec.egress[0].to[0]: want exactly one"},
	{clusterPolicy("c", "Admin", 0, "egress: [{action: Accept, to: [{domainNames: [a.b]}]}]"),
		"to[0].domainNames: not supported"},
	{
		clusterPolicy("c", "Admin", 0,
			"egress: [{action: Deny, to: [{nodes: {}}], protocols: [{destinationNamedPort: web}]}]"),
		"spec.egress[0].protocols: nodes and networks lack named ports",
	},
	{
		clusterPolicy("c", "Admin", 0,
			"egress: [{action: Deny, to: [{namespaces: {}}], protocols: [{tcp: {destinationPort: {range: {start: 9, end: "+
				"9}}}}]}]"),
		"spec.egress[0].protocols[0].tcp.destinationPort.range.end: 9 is not greater than start 9",
	},
	{
		clusterPolicy("c", "Admin", 0,
			"egress: [{action: Deny, to: [{namespaces: {}}], protocols: [{tcp: {destinationPort: {range: {end: 9}}}}]}]"),
		"spec.egress[0].protocols[0].tcp.destinationPort.range.start: missing",
	},
	{
		"{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{ports: [{name: web}]}]}}",
		`document 1: Pod default/p: spec.containers: port "web": containerPort: missing`,
	},
	{
		"{apiVersion: v1, kind: Pod, metadata: {name: p}, status: {podIPs: [{ip: x}]}}",
		`document 1: Pod default/p: status.podIPs[0].ip: ParseAddr("x"): unable to parse IP`,
	},
	{"{apiVersion: v1, kind: Node, metadata: {name: n, namespace: x}}", "Node n: metadata.namespace: a Node has none"},
	{"{apiVersion: extensions/v1beta1, kind: NetworkPolicy, metadata: {name: x}, spec: {podSelector: {}}}",
		"apiVersion: unknown version extensions/v1beta1"},
	{"{kind: NetworkPolicy, metadata: {name: x}, spec: {podSelector: {}}}", "apiVersion: unknown version none"},
	{"{apiVersion: networking.k8s.io/v1, kind: networkpolicy, metadata: {name: x}, spec: {podSelector: {}}}",
		"want NetworkPolicy"},
	{"{apiVersion: networking.k8s.io/v1, kind: NetworkPolicyy, metadata: {name: x}}",
		`kind: unknown kind "NetworkPolicyy": want NetworkPolicy`},
	{"{apiVersion: networking.k8s.io/v2, kind: NetPolicy, metadata: {name: x}}",
		`kind: unknown kind "NetPolicy": want NetworkPolicy`},
	{
		"{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterPolicy, metadata: {name: x}}",
		`kind: unknown kind "ClusterPolicy": want ClusterNetworkPolicy`,
	},
	{`{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: "a\nb"}, spec: {podSelector: {}}}`,
		"metadata.name"},
	{"{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: x, namespace: a/b}, spec: {podSelector: " +
		"{}}}", "metadata.namespace"},
	{
		`{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: x}, spec: {podSelector: {}, ingress: ` +
			`[{ports: [{port: "80"}]}]}}`,
		`port: "80": want a number`,
	},
}

func TestBadDocuments(t *testing.T) {
	for _, c := range bad {
		if _, err := Read(strings.NewReader("---\n" + c.text)); err == nil || !strings.Contains(err.Error(), c.want) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v, want %s", c.text, err, c.want)
		}
	}
}

func TestOthersAreNotRead(t *testing.T) {
	set, err := Read(strings.NewReader("---\n{apiVersion: apps/v1, kind: Deployment, metadata: {name: x}}\n---\n" +
		"{apiVersion: crd.projectcalico.org/v1, kind: NetworkPolicy, metadata: {name: y}}"))
	if err != nil || len(set.Notes) != 2 ||
		!strings.HasPrefix(set.Notes[0], "document 1: Deployment default/x: not read") {
		t.Errorf("%q, %v", set.Notes, err)
	}
}

// TestVersionsOfClusterNetworkPolicy reads one policy at both versions of its API alike, and refuses another version.
func TestVersionsOfClusterNetworkPolicy(t *testing.T) {
	v1alpha2 := clusterPolicy("deny", "Admin", 3, "ingress: [{action: Deny, from: [{namespaces: {}}]}]")
	read := func(version string) (Set, error) {
		return ReadFile(strings.NewReader("---\n" + strings.Replace(v1alpha2, "v1alpha2", version, 1)))
	}
	before, err := read("v1alpha2")
	now, nowErr := read("v1beta1")
	testkit.Check(t, err == nil && nowErr == nil && len(now.Snapshot.Policies) == 1 && reflect.DeepEqual(now, before),
		"v1beta1: %+v, %v, v1alpha2: %+v, %v", now, nowErr, before, err)
	const want = "apiVersion: unknown version policy.networking.k8s.io/v1: want NetworkPolicy of networking.k8s.io/v1 " +
		"or ClusterNetworkPolicy of policy.networking.k8s.io/v1beta1 or v1alpha2"
	_, err = read("v1")
	testkit.Check(t, err != nil && strings.HasSuffix(err.Error(), want), "v1: %v, want %s", err, want)
}

// TestListOfLists reads the items of lists within a list.
func TestListOfLists(t *testing.T) {
	set, err := Read(strings.NewReader(
		"---\n{apiVersion: v1, kind: List, items: [{apiVersion: networking.k8s.io/v1, kind: NetworkPolicyList, items: " +
			"[{metadata: {name: x}, spec: {podSelector: {}}}]}]}"))
	testkit.Check(t, err == nil && len(set.Snapshot.Policies) == 1 && len(set.Notes) == 0, "%v, %v", set, err)
}

// FuzzRead reads anything. Accepted objects compile, unless two have one address; errors are one line.
func FuzzRead(f *testing.F) {
	for _, c := range bad {
		f.Add(c.text)
	}
	for _, r := range recipes {
		f.Add(r.policies)
	}
	f.Add(cluster)
	f.Fuzz(func(t *testing.T, text string) {
		set, err := Read(strings.NewReader("---\n" + text))
		if err != nil {
			testkit.Require(t, !strings.ContainsAny(err.Error(), "\n\r") && err.Error() != "", "%q: error %q", text, err)
			return
		}
		_, err = policy.Steps(set.Snapshot, policy.Rows{}, policy.Limits{Work: policy.MostWork})
		testkit.Require(t, err == nil || strings.Contains(err.Error(), "also used by"), "%q: %v", text, err)
	})
}
