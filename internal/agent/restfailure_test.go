// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"mustang/internal/agent/healthz"
	"mustang/internal/datapath/policies"
	"mustang/internal/kube"
	"mustang/internal/kube/kubetest"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// slow are policies that cannot be written, which takes a while to find out.
type slow struct {
	applied
	calls atomic.Int32
}

func (s *slow) Apply(context.Context, service.Owner, policies.Set) (policies.Result, error) {
	s.calls.Add(1)
	time.Sleep(firstRetry + firstRetry/5)
	return policies.Result{}, errors.New("no tables")
}

// TestRestHidesNoFailure has policies that cannot be written, which takes longer than the first retry: nothing is called written while they are put off.
func TestRestHidesNoFailure(t *testing.T) {
	s := kubetest.Start(t)
	rows := &table{rows: map[service.Key]service.Service{}}
	client, err := kube.Connect(s.Kubeconfig(t))
	if err != nil {
		t.Fatal(err)
	}
	var log syncBuffer
	tables := &slow{applied: applied{rows}}
	s.Put(t, "/apis/networking.k8s.io/v1/networkpolicies", fmt.Sprintf(denyAll, ""))
	a := New(Options{Node: "here", Source: client, Services: rows, Policies: tables, Access: rows, Health: checks{rows}, State: healthz.New(), Events: client, Log: slog.New(slog.NewTextHandler(&log, nil))})
	startAgent(t, a)
	ready := 0
	testkit.Eventually(t, time.Minute, func() error {
		r := httptest.NewRecorder()
		a.State.Probes().ServeHTTP(r, httptest.NewRequest(http.MethodGet, "/readyz", nil))
		if r.Code == 200 {
			ready++
		}
		if n := tables.calls.Load(); n < 3 {
			return fmt.Errorf("written %d times", n)
		}
		return nil
	})
	if text := log.String(); ready > 0 || strings.Contains(text, "written again") {
		t.Errorf("/readyz was 200 for %d times; log:\n%s", ready, text)
	}
}
