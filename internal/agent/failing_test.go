// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"mustang/internal/agent/healthz"
	"mustang/internal/datapath/policies"
	"mustang/internal/kube"
	"mustang/internal/kube/kubetest"
	"mustang/internal/service"
)

// slow are policies that cannot be written, which takes a while to find out.
type slow struct{ applied }

func (s slow) Apply(context.Context, service.Owner, policies.Set) (policies.Result, error) {
	time.Sleep(1200 * time.Millisecond)
	return policies.Result{}, errors.New("no tables")
}

type lockedBuffer struct {
	sync.Mutex
	bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.Lock()
	defer b.Unlock()
	return b.Buffer.Write(p)
}

// TestRestHidesNoFailure has policies that cannot be written, which takes longer than the first retry: nothing is called written while they are put off.
func TestRestHidesNoFailure(t *testing.T) {
	s := kubetest.Start(t)
	rows := &table{rows: map[service.Key]service.Service{}}
	client, err := kube.Connect(s.Kubeconfig(t))
	if err != nil {
		t.Fatal(err)
	}
	var log lockedBuffer
	s.Put(t, "/apis/networking.k8s.io/v1/networkpolicies", fmt.Sprintf(denyAll, ""))
	a := New(Options{Node: "here", Source: client, Services: rows, Policies: slow{applied{rows}}, Access: rows, Health: checks{rows}, State: healthz.New(), Events: client, Log: slog.New(slog.NewTextHandler(&log, nil))})
	startAgent(t, a)
	ready := 0
	for begin := time.Now(); time.Since(begin) < 5*time.Second; time.Sleep(100 * time.Millisecond) {
		r := httptest.NewRecorder()
		a.State.Probes().ServeHTTP(r, httptest.NewRequest(http.MethodGet, "/readyz", nil))
		if r.Code == 200 {
			ready++
		}
	}
	log.Lock()
	text := log.String()
	log.Unlock()
	if ready > 0 || strings.Contains(text, "written again") {
		t.Errorf("/readyz was 200 for %d times; log:\n%s", ready, text)
	}
}
