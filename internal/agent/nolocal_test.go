// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"mustang/internal/kube/kubetest"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// TestNoLocalEndpoints counts Services whose traffic policy is Local and that have endpoints on other nodes alone, by kube-proxy's name.
func TestNoLocalEndpoints(t *testing.T) {
	s := kubetest.Start(t)
	rows := &table{rows: map[service.Key]service.Service{}}
	state := start(t, s, rows).State
	counts := func(what string, internal, external int) {
		t.Helper()
		testkit.Eventually(t, 30*time.Second, func() error {
			w := httptest.NewRecorder()
			state.Metrics().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
			for policy, n := range map[string]int{"internal": internal, "external": external} {
				want := fmt.Sprintf("kubeproxy_sync_proxy_rules_no_local_endpoints_total{traffic_policy=%q} %d\n", policy, n)
				if !strings.Contains(w.Body.String(), want) {
					return fmt.Errorf("%s: no %s", what, want)
				}
			}
			return nil
		})
	}
	slice := func(name, node string) {
		s.Put(t, endpointSlices, fmt.Sprintf(`{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4", "metadata": {"namespace": "shop", "name": %q,
"labels": {"kubernetes.io/service-name": %[1]q}}, "ports": [{"port": 8080}], "endpoints": [{"addresses": ["10.1.0.1"], "nodeName": %q}]}`, name, node))
	}
	s.Put(t, services, serviceAt("in", "10.96.0.1", `, "internalTrafficPolicy": "Local"`))
	s.Put(t, services, serviceAt("out", "10.96.0.2", `, "externalTrafficPolicy": "Local", "externalIPs": ["192.0.2.8", "192.0.2.9"]`))
	s.Put(t, services, serviceAt("any", "10.96.0.3", ""))
	counts("no endpoints at all", 0, 0)
	for _, name := range []string{"in", "out", "any"} {
		slice(name, "far")
	}
	counts("endpoints elsewhere", 1, 1)
	slice("out", "here")
	counts("one is here", 1, 0)
	slice("out", "far")
	s.Put(t, services, serviceAt("in", "10.96.0.1", ""))
	counts("another policy", 0, 1)
	s.Delete(services, "shop", "out")
	counts("a Service is gone", 0, 0)
}
