// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"mustang/internal/kube/kubetest"
	"mustang/internal/policy"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// TestUnreadPolicies closes what policies select that cannot be read, before they ever were and after, and an event tells.
func TestUnreadPolicies(t *testing.T) {
	s := kubetest.Start(t)
	rows := &table{rows: map[service.Key]service.Service{}}
	const networkPolicies = "/apis/networking.k8s.io/v1/networkpolicies"
	s.Put(t, networkPolicies, fmt.Sprintf(strings.Replace(denyAll, `"podSelector": {}`, `"ingress": []`, 1),
		`, "podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Egress"], "egress": [{"to": [{"later": {}}]}]`))
	s.Put(t, "/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies", `{"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
"metadata": {"name": "dns"}, "spec": {"tier": "Admin", "priority": 3, "subject": {"namespaces": {}}, "egress": [{"action": "Accept", "to": [{"domainNames": ["example.org"]}]}]}}`)
	start(t, s, rows)
	rows.wantsRules(t, "policies that never could be read", rules{[]string{"/dns", "shop/deny"}, nil})
	rows.Lock()
	dns, deny := rows.kept[0], rows.kept[1]
	rows.Unlock()
	if dns.Priority != 3 || len(dns.Ingress) > 0 || len(dns.Egress) != 1 || dns.Egress[0].Action != policy.Deny || dns.Egress[0].Peers != nil ||
		deny.IsolatesIngress || !deny.IsolatesEgress || len(deny.Egress) > 0 || deny.Subject.Pods.Labels["app"] != "web" {
		t.Errorf("there is %+v, %+v", dns, deny)
	}
	testkit.Eventually(t, 30*time.Second, func() error {
		const want = `to[0].later: unknown field; until it can be, it denies the pods that it selects all egress`
		if all := s.Objects(t, "/api/v1/events"); !strings.Contains(all, want) {
			return fmt.Errorf("there are the events %s", all)
		}
		return nil
	})
	s.Put(t, networkPolicies, fmt.Sprintf(denyAll, `, "ingress": [{}]`))
	s.Put(t, networkPolicies, fmt.Sprintf(denyAll, `, "ingress": [{"later": 1}]`))
	testkit.Eventually(t, 30*time.Second, func() error {
		rows.Lock()
		defer rows.Unlock()
		if p := rows.kept[len(rows.kept)-1]; len(p.Ingress) > 0 || !p.IsolatesIngress || p.IsolatesEgress {
			return fmt.Errorf("a policy that can be read no more is %+v", p)
		}
		return nil
	})
}
