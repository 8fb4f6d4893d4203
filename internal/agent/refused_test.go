// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"mustang/internal/agent/status"
	"mustang/internal/kube/kubetest"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// TestContentOfObjects has objects that ask for what the node cannot give: a health-check port that a process has, more rules than there is
// room for, an address that no device has, a pod from before the node had its range. Events, the status and a metric tell, all else is
// written, and no round has failed.
func TestContentOfObjects(t *testing.T) {
	s := kubetest.Start(t)
	rows := &table{rows: map[service.Key]service.Service{}, room: 2, busy: 30100, absent: true}
	s.Put(t, nodes, nodeAt("here", "192.0.2.1", `"podCIDRs": ["10.1.0.0/24"]`, ""))
	s.Put(t, "/api/v1/pods", podAt("old", "10.2.0.7", "2026-01-01T00:00:00Z", "Running"))
	s.Put(t, services, serviceAt("lb", "10.96.0.1", `, "type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 30100,
"externalIPs": ["192.0.2.10"]`))
	s.Put(t, "/apis/networking.k8s.io/v1/networkpolicies", fmt.Sprintf(denyAll,
		`, "ingress": [{"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}, {"ipBlock": {"cidr": "11.0.0.0/8"}}, {"ipBlock": {"cidr": "12.0.0.0/8"}}]}]`))
	n := &network{}
	a := start(t, s, rows, joining(n), func(o *Options) { o.Endpoints = pods{} })
	state := a.State
	testkit.Eventually(t, 30*time.Second, func() error {
		all := s.Objects(t, "/api/v1/events")
		report, err := a.Report(t.Context(), status.Query{Wrong: true})
		if err != nil {
			return err
		}
		for object, why := range map[string]string{
			"service shop/lb":         "health-check port 30100 of service 192.0.2.10:80/tcp: address already in use",
			"networkpolicy shop/deny": "no rules of it are in force",
			"node here":               "no device has an address of the node: [192.0.2.1]",
			"pod shop/old":            "10.2.0.7 is outside the node's ranges [10.1.0.0/24]: other nodes do not reach it",
		} {
			wrong := slices.ContainsFunc(report.Objects, func(o status.Object) bool {
				return o.String() == object && strings.Contains(fmt.Sprint(o.Why, o.Entries), why)
			})
			if !wrong || !strings.Contains(all, why) {
				return fmt.Errorf("%s: there are %+v, and the events %s", object, report.Objects, all)
			}
		}
		for _, want := range []string{`"message":"node here: health-check port`, `"message":"no device has`} {
			if !strings.Contains(all, want) {
				return fmt.Errorf("%s: there are the events %s", want, all)
			}
		}
		w := httptest.NewRecorder()
		state.Metrics().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil))
		for kind, n := range map[string]int{status.Service: 1, status.NetworkPolicy: 1, status.ClusterNetworkPolicy: 0, status.Pod: 1, status.Node: 1} {
			if want := fmt.Sprintf("mustang_agent_objects_refused{kind=%q} %d\n", kind, n); !strings.Contains(w.Body.String(), want) {
				return fmt.Errorf("the metrics lack %s", want)
			}
		}
		w = httptest.NewRecorder()
		state.Probes().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/readyz", nil))
		if rounds, _ := state.Rounds(); w.Code != 200 || rounds.Failed > 0 || !strings.Contains(rows.String(), "192.0.2.10:80/tcp") {
			return fmt.Errorf("/readyz: %d, rounds %+v, services %s", w.Code, rounds, rows)
		}
		return nil
	})
}
