// SPDX-License-Identifier: Apache-2.0

package status

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"mustang/internal/testkit"
)

// ask returns the status and the body of a path.
func ask(of http.Handler, path string) (int, string) {
	w := httptest.NewRecorder()
	of.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

// TestAnswers has changes wait, fail and be written, and a node that is about to go.
func TestAnswers(t *testing.T) {
	s := NewTracker()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s.now = func() time.Time { return now }
	wants := func(what string, healthz, livez, readyz int) {
		t.Helper()
		for path, want := range map[string]int{"/healthz": healthz, "/livez": livez, "/readyz": readyz} {
			if code, body := ask(s.Probes(), path); code != want || !strings.HasPrefix(body, `{"lastUpdated": "`) {
				t.Errorf("%s: %s: %d %s, want %d", what, path, code, body, want)
			}
		}
	}
	const ok, bad = http.StatusOK, http.StatusServiceUnavailable
	wants("begin", ok, ok, bad)
	s.Queued()
	now = now.Add(lateAfter - time.Second)
	wants("a change waits", ok, ok, bad)
	s.Queued()
	now = now.Add(time.Second)
	wants("it waits too long, as the cluster is read", bad, ok, bad)
	s.Begin()
	now = now.Add(lateAfter)
	wants("a round does not end", bad, bad, bad)
	s.Step()
	wants("a round goes on", bad, ok, bad)
	s.Written(time.Second, true, nil)
	wants("written", ok, ok, ok)
	s.Written(time.Second, false, errors.New("no"))
	now = now.Add(lateAfter)
	wants("failed", bad, ok, bad)
	s.Written(time.Second, false, nil)
	wants("others were written", bad, ok, bad)
	s.Written(time.Second, true, nil)
	s.Queued()
	now = now.Add(lateAfter)
	wants("no round begins", bad, bad, bad)
	s.Begin()
	s.Written(time.Second, true, nil)
	s.SetLeaving(true)
	wants("the node is about to go", bad, ok, ok)
	if _, body := ask(s.Probes(), "/healthz"); !strings.Contains(body, `"nodeEligible": false`) {
		t.Errorf("the node is about to go, and /healthz says %s", body)
	}
	_, body := ask(s.Metrics(), "/metrics")
	for _, line := range []string{
		"kubeproxy_sync_proxy_rules_duration_seconds_count 5", "kubeproxy_sync_full_proxy_rules_duration_seconds_count 3",
		"kubeproxy_sync_partial_proxy_rules_duration_seconds_count 2", "mustang_agent_failed_rounds_total 1",
		`mustang_agent_build_info{version="`,
		"kubeproxy_sync_proxy_rules_last_timestamp_seconds 1.767225", "process_resident_memory_bytes",
	} {
		if !strings.Contains(body, line) {
			t.Errorf("metrics lack %q", line)
		}
	}
}

// TestUnread tells that the cluster cannot be read by a metric.
func TestUnread(t *testing.T) {
	s := NewTracker()
	for _, test := range []struct {
		err  error
		want string
	}{{nil, "0"}, {errors.New("no"), "1"}, {nil, "0"}} {
		s.SetUnread(test.err)
		if _, body := ask(s.Metrics(), "/metrics"); !strings.Contains(body, "\nmustang_agent_cluster_unread "+test.want+"\n") {
			t.Errorf("%v: the metrics lack %s", test.err, test.want)
		}
	}
}

// TestServe answers at a port until the context ends, and not at one that is taken.
func TestServeUntilContextEnds(t *testing.T) {
	taken := httptest.NewServer(http.NotFoundHandler())
	address := taken.Listener.Addr().String()
	if err := Serve(t.Context(), address, NewTracker().Probes()); err == nil {
		t.Error("no error at a port that is taken")
	}
	taken.Close()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- Serve(ctx, address, NewTracker().Probes()) }()
	testkit.Eventually(t, 10*time.Second, func() error {
		answer, err := http.Get("http://" + address + "/livez")
		if err != nil {
			return err
		}
		return answer.Body.Close()
	})
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := http.Get("http://" + address + "/livez"); err == nil {
		t.Error("the context has ended, and it still answers")
	}
}
