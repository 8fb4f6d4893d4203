// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"testing"

	"mustang/internal/testkit"
)

// TestPodsInOneCacheSlot has a pod reach another pod under policies, with addresses that share a slot of the caches: a
// look-up of one replaces the copy of the other.
func TestPodsInOneCacheSlot(t *testing.T) {
	n, d := routed(t), openTest(t)
	const a, b = "10.244.0.2", "10.244.1.118"
	n.run(t, `
		-n PODA addr flush dev eth0 scope global
		-n PODB addr flush dev eth0 scope global
		-n PODA addr add `+a+`/32 dev eth0
		-n PODB addr add `+b+`/32 dev eth0
		-n PODA route add `+gateway4+` dev eth0
		-n PODB route add `+gateway4+` dev eth0
		-n PODA route add default via `+gateway4+`
		-n PODB route add default via `+gateway4+`
		-n HOST route add `+a+` dev va
		-n HOST route add `+b+` dev vb`)
	n.labelled(t, d)
	server := testkit.Echo(t, n.pods[0], "tcp", a+":0")
	for _, policies := range [][]string{
		nil, {denyEgressB, toAnyFromB}, {denyIngressA, fromAnyToA}, {denyIngressA, fromAnyToA, denyEgressB, toAnyFromB},
	} {
		applyPolicies(t, d, policies...)
		for range 3 {
			if _, err := testkit.RoundTrip(t, n.pods[1], "tcp", server.String(), []byte("x")); err != nil {
				t.Errorf("under %v: %v", policies, err)
				break
			}
		}
	}
}

const toAnyFromB = `{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: b-to-any}, spec: ` +
	`{podSelector: {matchLabels: {app: b}}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 0.0.0.0/0}}]}]}}`
