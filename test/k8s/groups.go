// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"

	"mustang/test/k8s/internal/cluster"
)

// reasons are patterns of specs that no group runs, and why. test/k8s/specs.md has them too.
var reasons = [][2]string{
	{`\[Serial\]`, "specs that change the cluster for all others"},
	{`\[Disruptive\]`, "specs that restart kube-proxy or the API server by ssh"},
	{`\[Alpha\]`, "features that Kubernetes has off by default"},
	{`LoadBalancer`, "a cloud has to provide load balancers"},
	{`SCTPConnectivity`,
		"the kernel has to have SCTP, which many machines lack; backends of its Services have other ports, which Mustang " +
			"does not serve"},
	{`Internet connection`, "nodes have no way to the Internet"},
	{`\[Provider:GCE\]`, "a provider's own names"},
	{`kube-proxy|KubeProxy`, "specs of kube-proxy itself: its ports and settings"},
	{`\[Feature:Networking-Performance\]`, "a measurement, which passes at any speed"},
}

// groups are the selections of specs that have a name.
var groups = map[string]cluster.Selection{
	"conformance": {Focus: `\[sig-network\].*\[Conformance\]`, Skip: skip(), Procs: 6},
	"others":      {Focus: `\[sig-network\]`, Skip: skip(`\[Conformance\]`, `Netpol`), Procs: 4},
	// Each probes nine pods against nine by kubectl exec: their own time-outs bear two at once.
	"netpol": {Focus: `\[sig-network\] Netpol`, Skip: skip(), Procs: 2},
	"short": {Focus: `\[sig-network\] (` + strings.Join([]string{
		`DNS should provide DNS for (the cluster|services|pods for Hostname) +\[Conf`,
		`HostPort validates`,
		`Networking Granular Checks: Pods should function for (intra-pod|node-pod) communication: (http|udp) \[`,
		`Services should (serve a basic endpoint|be able to change the type from (ClusterIP to ExternalName|ExternalName ` +
			`to NodePort)|have session affinity work for NodePort|allow pods to hairpin)`,
		`\[Feature:IPv6DualStack\] should be able to reach pod`,
		`Netpol NetworkPolicy between server and client should support a 'default-deny-ingress' policy`,
	}, "|") + `)`, Skip: skip(), Procs: 6},
}

// skip returns the pattern of specs that no group runs, and of more.
func skip(more ...string) string {
	for _, r := range reasons {
		more = append(more, r[0])
	}
	return strings.Join(more, "|")
}
