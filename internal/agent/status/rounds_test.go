// SPDX-License-Identifier: Apache-2.0

package status

import (
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// has checks that metrics have some lines.
func has(t *testing.T, s *Tracker, what string, lines ...string) {
	t.Helper()
	_, body := ask(s.Metrics(), "/metrics")
	for _, line := range lines {
		if !strings.Contains(body, "\n"+line+"\n") {
			t.Errorf("%s: metrics lack %q", what, line)
		}
	}
}

// TestPending has changes wait, fail with those that come meanwhile, and be written.
func TestPending(t *testing.T) {
	s := NewTracker()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s.now = func() time.Time { return now }
	const endpoints, services = "kubeproxy_sync_proxy_rules_endpoint_changes_", "kubeproxy_sync_proxy_rules_service_changes_"
	const programming = "kubeproxy_network_programming_duration_seconds_"
	s.EndpointsChanged(now.Add(-2 * time.Second))
	s.EndpointsChanged(time.Time{})
	s.ServiceChanged()
	has(t, s, "before a round", endpoints+"pending 2", endpoints+"total 2", services+"pending 1", services+"total 1", programming+"count 0")
	s.Begin()
	if rounds, _ := s.Rounds(); rounds.Running != now {
		t.Errorf("a round runs since %s, want %s", rounds.Running, now)
	}
	s.EndpointsChanged(now.Add(-time.Second))
	s.Written(time.Second, false, errors.New("no"))
	has(t, s, "a round failed", endpoints+"pending 3", services+"pending 1", programming+"count 0")
	s.Begin()
	now = now.Add(time.Second)
	s.EndpointsChanged(now)
	s.Written(3*time.Second, true, nil)
	has(t, s, "written", endpoints+"pending 1", endpoints+"total 4", services+"pending 0", programming+"count 2", programming+"sum 5")
	s.Joined(time.Second, errors.New("no"))
	s.Joined(time.Second, nil)
	has(t, s, "joined", "mustang_agent_nodes_duration_seconds_count 2", "mustang_agent_failed_nodes_rounds_total 1", "mustang_agent_nodes_last_timestamp_seconds 1.767225601e+09")
	s.Verb("ADD", time.Second, false)
	s.Verb("ADD", time.Second, true)
	has(t, s, "attached", `mustang_agent_cni_duration_seconds_count{result="done",verb="ADD"} 1`, `mustang_agent_cni_duration_seconds_sum{result="failed",verb="ADD"} 1`)
	rounds, nodes := s.Rounds()
	want := Rounds{First: now, Last: now, Number: 2, Failed: 1, Took: 3, Longest: 3, Mean: 2}
	if rounds != want || nodes.Number != 2 || nodes.Failed != 1 || nodes.Error != "" {
		t.Errorf("rounds %+v, want %+v; of nodes %+v", rounds, want, nodes)
	}
}

// TestReadyOnceAllIsWritten is not ready after rounds that have written some services.
func TestReadyOnceAllIsWritten(t *testing.T) {
	s := NewTracker()
	for i, full := range []bool{false, false, true, false} {
		s.Queued()
		s.Begin()
		s.Written(time.Second, full, nil)
		code, _ := ask(s.Probes(), "/readyz")
		if rounds, _ := s.Rounds(); rounds.First.IsZero() != (i < 2) || (code == 200) != (i >= 2) {
			t.Errorf("after round %d it began at %s, and /readyz has the status %d", i, rounds.First, code)
		}
	}
}

// TestDocumented compares the names of metrics with those that the documentation has.
func TestDocumented(t *testing.T) {
	s := NewTracker()
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
	docs, err := os.ReadFile("../../../docs/kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	if documented := names(string(docs), "`((?:kubeproxy|mustang)_\\w+)`"); len(have) < 10 || !slices.Equal(have, documented) {
		t.Errorf("there are\n%q, and documented are\n%q", have, documented)
	}
}
