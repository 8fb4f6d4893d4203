// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"mustang/internal/kube/kubetest"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// TestProgrammingLatency counts what an EndpointSlice tells of once, and nothing of before the agent began.
func TestProgrammingLatency(t *testing.T) {
	s := kubetest.Start(t)
	slice := func(at time.Time, ip string) string {
		return strings.Replace(sliceOf("web-1", "web", "a", ip), `"metadata": {`, fmt.Sprintf(
			`"metadata": {"annotations": {"endpoints.kubernetes.io/last-change-trigger-time": %q}, `, at.Format(time.RFC3339Nano)), 1)
	}
	rows := &table{rows: map[service.Key]service.Service{}}
	s.Put(t, services, serviceAt("web", "10.96.0.1", ""))
	s.Put(t, endpointSlices, slice(time.Now().Add(-time.Hour), "10.1.0.1"))
	state := start(t, s, rows).State
	rows.wants(t, "first list", "10.96.0.1:80/tcp [10.1.0.1:8080]")
	s.Put(t, endpointSlices, slice(time.Now(), "10.1.0.2"))
	rows.wants(t, "a change", "10.96.0.1:80/tcp [10.1.0.2:8080]")
	s.Forget()
	s.Put(t, services, serviceAt("other", "10.96.0.2", ""))
	rows.wants(t, "a new list", "10.96.0.1:80/tcp [10.1.0.2:8080]; 10.96.0.2:80/tcp []")
	testkit.Eventually(t, 30*time.Second, func() error {
		w := httptest.NewRecorder()
		state.Metrics().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		for _, line := range []string{"network_programming_duration_seconds_count 1", "endpoint_changes_pending 0"} {
			if !strings.Contains(w.Body.String(), "\nkubeproxy_"+line) && !strings.Contains(w.Body.String(), "\nkubeproxy_sync_proxy_rules_"+line) {
				return errors.New("metrics lack " + line)
			}
		}
		return nil
	})
}
