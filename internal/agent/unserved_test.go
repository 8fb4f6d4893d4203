// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"mustang/internal/agent/status"
	"mustang/internal/kube/kubetest"
	"mustang/internal/policy"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// TestUnservedPolicies has a cluster serve ClusterNetworkPolicies at no known version any more: a node keeps what is installed, a new node takes no pods, and
// the status and an event tell.
func TestUnservedPolicies(t *testing.T) {
	s := kubetest.Start(t)
	const list = "/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies"
	const definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/clusternetworkpolicies.policy.networking.k8s.io"
	const why = "clusternetworkpolicies.policy.networking.k8s.io is served neither as v1beta1 nor as v1alpha2: what is installed stays"
	s.Put(t, list, `{"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy", "metadata": {"name": "deny"},
"spec": {"tier": "Admin", "priority": 3, "subject": {"namespaces": {}}, "ingress": [{"action": "Deny", "from": [{"namespaces": {}}]}]}}`)
	begin := func(node string) (*Agent, *table) {
		rows := &table{rows: map[service.Key]service.Service{}}
		a := start(t, s, rows, func(o *Options) { o.Node = node })
		return a, rows
	}
	told := func(a *Agent, node string) {
		t.Helper()
		testkit.Eventually(t, time.Minute, func() error {
			report, err := a.Report(t.Context(), status.Query{})
			if err != nil {
				return err
			}
			if all := s.Objects(t, "/api/v1/events"); !strings.HasSuffix(report.Unread, why) || !strings.Contains(all, why) ||
				!strings.Contains(all, fmt.Sprintf(`"host":%q`, node)) {
				return fmt.Errorf("%s: the status has %q, the events are %s", node, report.Unread, all)
			}
			return nil
		})
	}
	old, rows := begin("old")
	installed := rules{policies: []string{"/deny"}}
	rows.wantsRules(t, "first list", installed)
	s.Handle(definition, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"kind": "CustomResourceDefinition", "apiVersion": "apiextensions.k8s.io/v1", "spec": {"versions": [{"name": "v1", "served": true}, {"name": "v1alpha2", "served": false}]}}`))
	}))
	s.Handle(list, http.NotFoundHandler())
	s.Forget()
	told(old, "old")
	fresh, none := begin("new")
	told(fresh, "new")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := fresh.AwaitPod(ctx, "shop", "web", ""); err == nil || !strings.Contains(err.Error(), why) {
		t.Errorf("a pod of a new node: %v", err)
	}
	s.Put(t, services, serviceAt("web", "10.96.0.1", ""))
	rows.wants(t, "a Service that comes", "10.96.0.1:80/tcp []")
	rows.wantsRules(t, "what is installed", installed)
	s.Handle(definition, nil)
	s.Handle(list, nil)
	none.wantsRules(t, "served again", installed)
}

// TestEmptyAtStart starts an agent on a node with a policy of an agent before, beside an API server that lists none: the policy stays, and the status says so.
func TestEmptyAtStart(t *testing.T) {
	s := kubetest.Start(t)
	rows := &table{rows: map[service.Key]service.Service{}, kept: []policy.Policy{{Tier: policy.Namespaced, Namespace: "shop", Name: "deny"}}}
	a := start(t, s, rows)
	testkit.Eventually(t, time.Minute, func() error {
		report, err := a.Report(t.Context(), status.Query{})
		if err == nil && !strings.Contains(report.Unread, "an empty list of networkpolicies, of which 1 are known") {
			err = fmt.Errorf("the status has %q", report.Unread)
		}
		return err
	})
	if kept, err := (applied{rows}).List(); err != nil || len(kept) != 1 {
		t.Errorf("%v: the policies are %v", err, kept)
	}
}
