// SPDX-License-Identifier: Apache-2.0

package status

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"mustang/internal/version"
)

// lateAfter is how long a change may wait until it is written, and how long a round may take: twice the period in which kube-proxy
// compares all.
const lateAfter = time.Minute

// requestTimeout bounds a request: probes are short.
const requestTimeout = 5 * time.Second

// Tracker follows the work of an agent, and answers probes of it and of load balancers that ask for its node: at the paths,
// and with the metrics, of kube-proxy (KEP-3836 for /healthz and /livez). Its methods may be called from any goroutine.
type Tracker struct {
	registry *prometheus.Registry
	metrics  metrics
	now      func() time.Time

	mu      sync.Mutex
	waiting time.Time // since when a change waits; zero: none does
	writing time.Time // since when a round has been due or runs, after the first; zero: none is
	failed  bool      // something has failed, and nothing has compared all since
	leaving bool      // load balancers are to leave the node alone
	unread  string    // why the cluster cannot be read

	degraded map[string]string // why not all is written, by what it is about

	rounds         Rounds
	nodes          Rounds
	pending, taken changes
}

// NewTracker returns the tracker of an agent that has written nothing yet.
func NewTracker() *Tracker {
	registry := prometheus.NewRegistry()
	s := &Tracker{registry: registry, metrics: newMetrics(registry), now: time.Now, degraded: map[string]string{}}
	s.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	s.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Subsystem: "mustang_agent", Name: "build_info", Help: "1, with the version of the program.", ConstLabels: prometheus.Labels{"version": version.Program()},
	}, func() float64 { return 1 }))
	return s
}

// Tell adds metrics to those of the agent.
func (s *Tracker) Tell(of prometheus.Collector) { s.registry.MustRegister(of) }

// Services notes how many services and backends there are to be.
func (s *Tracker) Services(services, backends int) {
	s.metrics.services.Set(float64(services))
	s.metrics.backends.Set(float64(backends))
}

// NoLocalEndpoints notes of how many services the internal or the external traffic policy is Local while no backend on this node serves.
func (s *Tracker) NoLocalEndpoints(internal, external int) {
	s.metrics.noLocal.WithLabelValues("internal").Set(float64(internal))
	s.metrics.noLocal.WithLabelValues("external").Set(float64(external))
}

// Refused notes how many objects of each kind do not have in force all that they ask for.
func (s *Tracker) Refused(of map[string]int) {
	s.metrics.refused.Reset()
	for kind, n := range of {
		s.metrics.refused.WithLabelValues(kind).Set(float64(n))
	}
}

// SetLeaving notes whether the node is about to go: /healthz fails then, so that load balancers take it out, and /livez does not.
func (s *Tracker) SetLeaving(leaving bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaving = leaving
}

// SetUnread notes why the cluster cannot be read; nil: it can.
func (s *Tracker) SetUnread(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unread = ""
	s.metrics.unread.Set(0)
	if err != nil {
		s.unread = err.Error()
		s.metrics.unread.Set(1)
	}
}

// Unread returns why the cluster cannot be read; empty: it can.
func (s *Tracker) Unread() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unread
}

// SetDegraded notes why the node keeps an earlier state of some of its services or policies, as where a map is full; empty: it does not.
func (s *Tracker) SetDegraded(of, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.degraded[of] = why; why == "" {
		delete(s.degraded, of)
	}
	s.metrics.degraded.Set(float64(min(1, len(s.degraded))))
}

// Degraded returns a line for each cause.
func (s *Tracker) Degraded() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.degradedLines()
}

func (s *Tracker) degradedLines() (lines []string) {
	for _, of := range slices.Sorted(maps.Keys(s.degraded)) {
		lines = append(lines, of+": degraded: "+s.degraded[of])
	}
	return lines
}

func seconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }

// Metrics returns what answers at /metrics.
func (s *Tracker) Metrics() http.Handler {
	mux := http.NewServeMux()
	options := promhttp.HandlerOpts{
		ErrorHandling: promhttp.ContinueOnError, // tables that cannot be read do not hide the agent itself
		Registry:      s.registry,
		// With a time-out answers are buffered: a client that reads slowly keeps no other one waiting.
		MaxRequestsInFlight: 2, Timeout: 10 * time.Second,
	}
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.registry, options))
	return mux
}

// Probes returns what answers at /healthz; /livez, which tells whether rounds end, however they do: a new process would meet the same
// errors; and /readyz, which tells whether all has been written once.
func (s *Tracker) Probes() http.Handler {
	mux := http.NewServeMux()
	for _, path := range []string{"/healthz", "/livez", "/readyz"} {
		mux.HandleFunc("GET "+path, s.answer)
	}
	return mux
}

// answer answers as kube-proxy does. The time of the last update is now as long as nothing waits.
func (s *Tracker) answer(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	now := s.now()
	inTime := func(since time.Time) bool { return since.IsZero() || now.Sub(since) < lateAfter }
	updated, more, healthy := s.rounds.Last, "", inTime(s.waiting)
	if s.waiting.IsZero() {
		updated = now
	}
	switch r.URL.Path {
	case "/livez":
		healthy = inTime(s.writing)
	case "/healthz":
		healthy = healthy && !s.leaving
		more = fmt.Sprintf(`,"nodeEligible": %t`, !s.leaving)
		if lines := s.degradedLines(); len(lines) > 0 {
			more += fmt.Sprintf(`,"degraded": %q`, strings.Join(lines, "; "))
		}
	case "/readyz":
		healthy = healthy && !s.rounds.Last.IsZero()
		if s.unread != "" {
			more = fmt.Sprintf(`,"error": %q`, s.unread)
		}
	}
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	code := http.StatusOK
	if !healthy {
		code = http.StatusServiceUnavailable
	}
	if counter := s.metrics.answers[r.URL.Path]; counter != nil {
		counter.WithLabelValues(strconv.Itoa(code)).Inc()
	}
	w.WriteHeader(code)
	_, _ = fmt.Fprintf(w, `{"lastUpdated": %q,"currentTime": %q%s}`, updated, now, more) // whoever asked is gone
}

// Serve lets a handler answer at an address, "192.0.2.1:10256", until the context ends. Errors: those of net.Listen.
func Serve(ctx context.Context, address string, handler http.Handler) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return ServeAt(ctx, listener, handler)
}

// ServeAt is as Serve, at a listener, which it closes.
func ServeAt(ctx context.Context, listener net.Listener, handler http.Handler) error {
	return serveUntil(ctx, listener, &http.Server{
		Handler: handler, ReadTimeout: requestTimeout, WriteTimeout: requestTimeout, IdleTimeout: lateAfter,
	})
}
