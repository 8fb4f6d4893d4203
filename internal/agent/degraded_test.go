// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"io"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"mustang/internal/agent/status"
	"mustang/internal/datapath/objects"
	"mustang/internal/kube"
	"mustang/internal/kube/kubetest"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// TestFullNodeIsDegraded has a node whose maps are full for a change of policies: those in force stay, the node stays ready and in service, and a later
// try ends it.
func TestFullNodeIsDegraded(t *testing.T) {
	s := kubetest.Start(t)
	client, err := kube.Connect(s.Kubeconfig(t))
	if err != nil {
		t.Fatal(err)
	}
	const policies = "/apis/networking.k8s.io/v1/networkpolicies"
	rows := &table{rows: map[service.Key]service.Service{}}
	s.Put(t, nodes, nodeAt("here", "192.0.2.1", `"podCIDRs": ["10.1.0.0/24"]`, ""))
	s.Put(t, policies, fmt.Sprintf(denyAll, ""))
	state := status.NewTracker()
	a := New(Options{
		Node: "here", Source: client, Services: rows, Policies: applied{rows}, Access: rows, Health: checks{rows}, State: state, Events: client,
		Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	startAgent(t, a)
	answer := func(path string) (int, string) {
		w := httptest.NewRecorder()
		state.Probes().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", path, nil))
		return w.Code, w.Body.String()
	}
	metric := func() string {
		w := httptest.NewRecorder()
		state.Metrics().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil))
		return w.Body.String()
	}
	expect := func(degraded bool, number int) {
		t.Helper()
		testkit.Eventually(t, 10*time.Second, func() error {
			report, err := a.Report(t.Context(), status.Query{})
			if err != nil {
				return err
			}
			ready, _ := answer("/readyz")
			healthy, body := answer("/healthz")
			rounds, _ := state.Rounds()
			tells := strings.Contains(body, `"degraded": "policies: degraded: map \"verdicts\" is full`) && strings.Contains(fmt.Sprint(report.Warnings), `map "verdicts" is full`) &&
				strings.Contains(metric(), "\nmustang_agent_degraded 1\n")
			rows.Lock()
			defer rows.Unlock()
			if tells != degraded || ready != 200 || healthy != 200 || rounds.Failed > 0 || len(rows.rules.policies) != number {
				return fmt.Errorf("degraded %t, /readyz %d, /healthz %d %s, warnings %q, %+v, %v", tells, ready, healthy, body, report.Warnings, rounds, rows.rules.policies)
			}
			return nil
		})
	}
	expect(false, 1)
	rows.Lock()
	rows.refuses = &objects.FullError{Map: "verdicts", Size: 262144}
	rows.Unlock()
	s.Put(t, policies, strings.Replace(fmt.Sprintf(denyAll, ""), `"deny"`, `"more"`, 1))
	expect(true, 1)
	rows.Lock()
	rows.refuses = nil
	rows.Unlock()
	expect(false, 2)
}
