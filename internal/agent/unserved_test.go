// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
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

// TestEmptyAtStart starts an agent on a node with a policy of an agent before, beside an API server whose list of one kind is empty: the policy stays as it is,
// and the status says so. A node without anything from before starts at once.
func TestEmptyAtStart(t *testing.T) {
	for _, empty := range []string{"networkpolicies", "nodes", "namespaces", "pods", "services", "endpointslices"} {
		t.Run(empty, func(t *testing.T) {
			t.Parallel()
			s := kubetest.Start(t)
			for list, object := range map[string]string{
				nodes:                nodeAt("here", "192.0.2.1", "", ""),
				"/api/v1/namespaces": `{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}`,
				"/api/v1/pods":       podAt("web", "10.1.0.1", "2026-01-01T00:00:00Z", "Running"),
				services:             serviceAt("web", "10.96.0.1", ""),
				endpointSlices:       sliceOf("web-1", "web", "a", "10.1.0.1"),
			} {
				if !strings.HasSuffix(list, "/"+empty) {
					s.Put(t, list, object)
				}
			}
			rows := &table{rows: map[service.Key]service.Service{}, kept: []policy.Policy{{Tier: policy.Namespaced, Namespace: "shop", Name: "deny"}}}
			if empty != "networkpolicies" {
				s.Put(t, "/apis/networking.k8s.io/v1/networkpolicies", fmt.Sprintf(denyAll, ""))
			}
			a := start(t, s, rows)
			testkit.Eventually(t, time.Minute, func() error {
				report, err := a.Report(t.Context(), status.Query{})
				if err == nil && !strings.Contains(report.Unread, "an empty list of "+empty+", although 1 are known") {
					err = fmt.Errorf("the status has %q", report.Unread)
				}
				return err
			})
			if kept, err := (applied{rows}).List(); err != nil || len(kept) != 1 || len(written(rows)) != 0 {
				t.Errorf("%v: the policies are %v, written %v", err, kept, written(rows))
			}
			fresh := &table{rows: map[service.Key]service.Service{}}
			start(t, s, fresh)
			testkit.Eventually(t, time.Minute/2, func() error {
				if empty != "networkpolicies" && len(written(fresh)) == 0 {
					return errors.New("a new node waits")
				}
				return nil
			})
		})
	}
}

// written returns the policies that an agent has written into a table.
func written(rows *table) []string {
	rows.Lock()
	defer rows.Unlock()
	return rows.policies
}
