// SPDX-License-Identifier: Apache-2.0

package status

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// slow is a collector that walks a long table.
type slow struct{ now, most atomic.Int32 }

func (*slow) Describe(chan<- *prometheus.Desc) {}

func (s *slow) Collect(chan<- prometheus.Metric) {
	n := s.now.Add(1)
	defer s.now.Add(-1)
	for most := s.most.Load(); n > most && !s.most.CompareAndSwap(most, n); most = s.most.Load() {
	}
	time.Sleep(100 * time.Millisecond)
}

// TestMetricsFlood asks for metrics from many clients at once, as pods can where the address is not of the loopback device: tables are
// walked for two at a time, and the others are refused.
func TestMetricsFlood(t *testing.T) {
	s, table := NewTracker(), &slow{}
	s.Tell(table)
	handler := s.Metrics()
	var all sync.WaitGroup
	var answered atomic.Int32
	for range 50 {
		all.Go(func() {
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
			if w.Code == http.StatusOK {
				answered.Add(1)
			}
		})
	}
	all.Wait()
	if most := table.most.Load(); most == 0 || most > 2 || answered.Load() == 0 {
		t.Errorf("%d of 50 walked the table at once, and %d were answered", most, answered.Load())
	}
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
	for _, line := range []string{"mustang_agent_failed_rounds_total 0", `promhttp_metric_handler_errors_total{cause="gathering"} 1`} {
		if code != http.StatusOK || !strings.Contains(body, line) {
			t.Errorf("status %d, and metrics lack %q", code, line)
		}
	}
}
