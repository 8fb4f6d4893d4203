// SPDX-License-Identifier: Apache-2.0

package status

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"mustang/internal/testkit"
)

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
		testkit.Check(t, strings.Contains(body, line), "metrics lack %q", line)
	}
}

// TestUnread reports in a metric that the cluster cannot be read.
func TestUnread(t *testing.T) {
	s := NewTracker()
	for _, test := range []struct {
		err  error
		want string
	}{{nil, "0"}, {errors.New("no"), "1"}, {nil, "0"}} {
		s.SetUnread(test.err)
		_, body := ask(s.Metrics(), "/metrics")
		testkit.Check(t, strings.Contains(body, "\nmustang_agent_cluster_unread "+test.want+"\n"),
			"%v: the metrics lack %s", test.err, test.want)
	}
}

func has(t *testing.T, s *Tracker, what string, lines ...string) {
	t.Helper()
	_, body := ask(s.Metrics(), "/metrics")
	for _, line := range lines {
		testkit.Check(t, strings.Contains(body, "\n"+line+"\n"), "%s: metrics lack %q", what, line)
	}
}

// TestPending has changes wait, fail together with later changes, and be written.
func TestPending(t *testing.T) {
	s := NewTracker()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s.now = func() time.Time { return now }
	const endpoints, services = "kubeproxy_sync_proxy_rules_endpoint_changes_",
		"kubeproxy_sync_proxy_rules_service_changes_"
	const programming = "kubeproxy_network_programming_duration_seconds_"
	s.EndpointsChanged(now.Add(-2 * time.Second))
	s.EndpointsChanged(time.Time{})
	s.ServiceChanged()
	has(t, s, "before a round", endpoints+"pending 2", endpoints+"total 2", services+"pending 1", services+
		"total 1", programming+"count 0")
	s.Begin()
	rounds := s.Report().Sync
	testkit.Check(t, rounds.Running == now, "a round runs since %s, want %s", rounds.Running, now)
	s.EndpointsChanged(now.Add(-time.Second))
	s.Written(time.Second, false, errors.New("no"))
	has(t, s, "a round failed", endpoints+"pending 3", services+"pending 1", programming+"count 0")
	s.Begin()
	now = now.Add(time.Second)
	s.EndpointsChanged(now)
	s.Written(3*time.Second, true, nil)
	has(t, s, "written", endpoints+"pending 1", endpoints+"total 4", services+"pending 0", programming+
		"count 2", programming+"sum 5")
	s.Joined(time.Second, errors.New("no"))
	s.Joined(time.Second, nil)
	has(t, s, "joined", "mustang_agent_nodes_duration_seconds_count 2", "mustang_agent_failed_nodes_rounds_total 1",
		"mustang_agent_nodes_last_timestamp_seconds 1.767225601e+09")
	s.Verb("ADD", time.Second, false)
	s.Verb("ADD", time.Second, true)
	has(t, s, "attached", `mustang_agent_cni_duration_seconds_count{result="done",verb="ADD"} 1`,
		`mustang_agent_cni_duration_seconds_sum{result="failed",verb="ADD"} 1`)
	rounds, nodes := s.Report().Sync, s.Report().Nodes
	want := Rounds{First: now, Last: now, Waiting: rounds.Waiting, Number: 2, Failed: 1, Took: 3, Longest: 3, Mean: 2}
	testkit.Check(t, rounds == want && nodes.Number == 2 && nodes.Failed == 1 && nodes.Error == "",
		"rounds %+v, want %+v; of nodes %+v", rounds, want, nodes)
}

// TestReadyOnceAllIsWritten is not ready after rounds that have written some services.
func TestReadyOnceAllIsWritten(t *testing.T) {
	s := NewTracker()
	for i, full := range []bool{false, false, true, false} {
		s.Queued()
		s.Begin()
		s.Written(time.Second, full, nil)
		code, _ := ask(s.Probes(), "/readyz")
		if rounds := s.Report().Sync; rounds.First.IsZero() != (i < 2) || (code == 200) != (i >= 2) {
			t.Errorf("after round %d it began at %s, and /readyz has the status %d", i, rounds.First, code)
		}
	}
}

// TestDocumented compares the names of metrics with the names in the documentation.
func TestDocumented(t *testing.T) {
	s := NewTracker()
	s.TellLate(func() ([]string, error) { return []string{"far"}, nil })
	s.CountPaths()
	for _, path := range []string{"/healthz", "/livez"} { // counters by label come with their first answer
		ask(s.Probes(), path)
	}
	names := func(text, pattern string) (names []string) {
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
			names = append(names, m[1])
		}
		slices.Sort(names)
		return slices.Compact(names)
	}
	_, body := ask(s.Metrics(), "/metrics")
	have := names(body, `(?m)^# TYPE ((?:kubeproxy|mustang)_\w+)`)
	docs := testkit.Must(os.ReadFile("../../../docs/reference/metrics.md"))(t)
	documented := names(string(docs), "`((?:kubeproxy|mustang)_\\w+)`")
	testkit.Check(t, strings.Contains(body, "\nmustang_wireguard_peers_without_handshake 1\n"), "%s", body)
	testkit.Check(t, len(have) >= 10 && slices.Equal(have, documented),
		"there are\n%q, and documented are\n%q", have, documented)
}

// blocked is a collector that waits inside a table: each walk sends to inside, and ends after a receive from leave.
type blocked struct{ inside, leave chan bool }

func (blocked) Describe(chan<- *prometheus.Desc) {}

func (b blocked) Collect(chan<- prometheus.Metric) {
	b.inside <- true
	<-b.leave
}

// TestMetricsFlood sends many requests for metrics at once, as pods can if the address is not a loopback address: two
// walk the tables at a time, and the others get status 503.
func TestMetricsFlood(t *testing.T) {
	s, table := NewTracker(), blocked{make(chan bool), make(chan bool)}
	s.Tell(table)
	handler := s.Metrics()
	var two sync.WaitGroup
	for range 2 {
		two.Go(func() {
			code, _ := ask(handler, "/metrics")
			testkit.Check(t, code == http.StatusOK, "one of two clients got status %d", code)
		})
		<-table.inside
	}
	for range 50 {
		code, _ := ask(handler, "/metrics")
		testkit.Check(t, code == http.StatusServiceUnavailable, "a client beside two others got status %d", code)
	}
	close(table.leave)
	two.Wait()
}

// broken is a collector whose table cannot be read.
type broken struct{}

func (broken) Describe(chan<- *prometheus.Desc) {}

func (broken) Collect(to chan<- prometheus.Metric) {
	to <- prometheus.NewInvalidMetric(prometheus.NewDesc("broken", "broken", nil, nil), errors.New("no such table"))
}

// TestMetricsOfBrokenTable expects the agent's own metrics, and a count of failures, where a table cannot be read.
func TestMetricsOfBrokenTable(t *testing.T) {
	s := NewTracker()
	s.Tell(broken{})
	handler := s.Metrics()
	ask(handler, "/metrics")
	code, body := ask(handler, "/metrics")
	for _, line := range []string{"mustang_agent_failed_rounds_total 0",
		`promhttp_metric_handler_errors_total{cause="gathering"} 1`} {
		testkit.Check(t, code == http.StatusOK && strings.Contains(body, line), "status %d, and metrics lack %q", code, line)
	}
}
