// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"mustang/internal/kube/kubetest"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// TestOtherOwner has a Service whose address another owner has: the others are served, the agent is ready, and the Service is served once the
// address is free.
func TestOtherOwner(t *testing.T) {
	s := kubetest.Start(t)
	rows := &table{rows: map[service.Key]service.Service{}}
	rows.other = service.Key{Frontend: netip.MustParseAddrPort("10.96.0.1:80"), Protocol: service.TCP}
	s.Put(t, services, serviceAt("one", "10.96.0.1", ""))
	s.Put(t, services, serviceAt("two", "10.96.0.2", ""))
	state := start(t, s, rows).State
	rows.wants(t, "from the begin", "10.96.0.2:80/tcp []")
	testkit.Eventually(t, 30*time.Second, func() error {
		w := httptest.NewRecorder()
		state.Probes().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/readyz", nil))
		if w.Code != http.StatusOK {
			return fmt.Errorf("/readyz: %d", w.Code)
		}
		return nil
	})
	s.Put(t, services, serviceAt("three", "10.96.0.3", ""))
	rows.wants(t, "another", "10.96.0.2:80/tcp []; 10.96.0.3:80/tcp []")
	rows.Lock()
	rows.other = service.Key{}
	rows.Unlock()
	rows.wants(t, "it is free", "10.96.0.1:80/tcp []; 10.96.0.2:80/tcp []; 10.96.0.3:80/tcp []")
}

// TestOlder gives an address that two Services have to the older one, whichever comes first and sorts first, and to the other once the
// older one is made anew.
func TestOlder(t *testing.T) {
	external := `, "externalIPs": ["192.0.2.1"]`
	at := func(name, ip, created string) string {
		return strings.Replace(serviceAt(name, ip, external), `"metadata": {`, fmt.Sprintf(`"metadata": {"creationTimestamp": %q, `, created), 1)
	}
	old, young := at("web", "10.96.0.1", "2026-01-01T00:00:00Z"), at("api", "10.96.0.2", "2026-01-02T00:00:00Z")
	for _, first := range []string{old, young} {
		s := kubetest.Start(t)
		rows := &table{rows: map[service.Key]service.Service{}}
		s.Put(t, endpointSlices, sliceOf("web", "web", "a", "10.1.0.1"))
		s.Put(t, endpointSlices, sliceOf("api", "api", "a", "10.1.0.2"))
		s.Put(t, services, first)
		start(t, s, rows)
		if first == young {
			rows.wants(t, "the younger one alone", "10.96.0.2:80/tcp [10.1.0.2:8080]; 192.0.2.1:80/tcp [10.1.0.2:8080]")
		}
		s.Put(t, services, old)
		s.Put(t, services, young)
		rows.wants(t, "both", "10.96.0.1:80/tcp [10.1.0.1:8080]; 10.96.0.2:80/tcp [10.1.0.2:8080]; 192.0.2.1:80/tcp [10.1.0.1:8080]")
		s.Put(t, services, at("web", "10.96.0.1", "2026-01-03T00:00:00Z"))
		rows.wants(t, "another of the name", "10.96.0.1:80/tcp [10.1.0.1:8080]; 10.96.0.2:80/tcp [10.1.0.2:8080]; 192.0.2.1:80/tcp [10.1.0.2:8080]")
	}
}
