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
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// lateAfter is how long a change may wait until it is written, and how long a round may take: twice the period in which
// kube-proxy compares all.
const lateAfter = time.Minute

// requestTimeout bounds a request: probes are short.
const requestTimeout = 5 * time.Second

// maxTriggers bounds the times of changes that nothing can write.
const maxTriggers = 100_000

// Tracker follows the work of an agent, and answers probes of it and of load balancers that ask for its node: at the
// paths, and with the metrics, of kube-proxy (KEP-3836 for /healthz and /livez). Its methods may be called from any
// goroutine.
type Tracker struct {
	registry *prometheus.Registry
	metrics  metrics
	now      func() time.Time
	// Refused counts the objects that do not have all that they ask for. It is set before metrics are asked for.
	Refused func() []Count

	mu sync.Mutex
	state
}

// state is what a tracker knows.
type state struct {
	queued  time.Time // the last change
	waiting time.Time // since when a change waits; zero: none does
	writing time.Time // since when a round has been due or runs, after the first; zero: none is
	failed  bool      // something has failed, and nothing has compared all since
	leaving bool      // load balancers are to leave the node alone
	unread  string    // why the cluster cannot be read

	degraded      map[string]string // why not all is written, by what it is about
	counts        Installed
	rounds, nodes Rounds
	came          changes // all that came
	begun, done   changes // those that the last round took, and those that are written
	triggers      []time.Time
}

// changes are numbers of changes that came. Triggers are those with a time in state.triggers.
type changes struct{ services, endpoints, triggers int }

// Installed counts what is to be installed: services with their backends, and the services whose traffic policy is
// Local without a backend on this node.
type Installed struct{ Services, Backends, NoLocalInternal, NoLocalExternal int }

// NewTracker returns the tracker of an agent that has written nothing yet.
func NewTracker() *Tracker {
	s := &Tracker{registry: prometheus.NewRegistry(), now: time.Now,
		Refused: func() []Count { return []Count{{Kind: Service}} }, state: state{degraded: map[string]string{}}}
	s.register()
	return s
}

// Tell adds metrics to those of the agent.
func (s *Tracker) Tell(of prometheus.Collector) { s.registry.MustRegister(of) }

// set changes the state.
func (s *Tracker) set(change func(now time.Time)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s.now())
}

// SetInstalled notes what is to be installed.
func (s *Tracker) SetInstalled(c Installed) { s.set(func(time.Time) { s.counts = c }) }

// SetLeaving notes whether the node is about to go: /healthz fails then, so that load balancers take it out, and /livez
// does not.
func (s *Tracker) SetLeaving(leaving bool) { s.set(func(time.Time) { s.leaving = leaving }) }

// SetUnread notes why the cluster cannot be read; nil: it can.
func (s *Tracker) SetUnread(err error) {
	s.set(func(time.Time) {
		if s.unread = ""; err != nil {
			s.unread = err.Error()
		}
	})
}

// SetDegraded notes why the node keeps an earlier state of some of its services or policies, as where a map is full;
// empty: it does not.
func (s *Tracker) SetDegraded(of, why string) {
	s.set(func(time.Time) {
		if s.degraded[of] = why; why == "" {
			delete(s.degraded, of)
		}
	})
}

// Queued notes that a change waits to be written.
func (s *Tracker) Queued() {
	s.set(func(now time.Time) {
		s.queued = now
		if s.waiting.IsZero() {
			s.waiting = now
		}
		if s.writing.IsZero() && s.rounds.Number > 0 { // before, the cluster is read, which a new process would do no faster
			s.writing = now
		}
	})
}

// ServiceChanged notes a change of a Service that waits to be written.
func (s *Tracker) ServiceChanged() { s.set(func(time.Time) { s.came.services++ }) }

// EndpointsChanged notes a change of an EndpointSlice that waits to be written, and when what it tells of happened;
// zero: unknown.
func (s *Tracker) EndpointsChanged(triggered time.Time) {
	s.set(func(time.Time) {
		s.came.endpoints++
		if !triggered.IsZero() && len(s.triggers) < maxTriggers {
			s.triggers = append(s.triggers, triggered)
			s.came.triggers++
		}
	})
}

// Begin notes that a round takes all changes that wait.
func (s *Tracker) Begin() {
	s.set(func(now time.Time) {
		s.begun, s.rounds.Running = s.came, now
		if s.writing.IsZero() {
			s.writing = now
		}
	})
}

// Step notes that a round goes on: /livez fails if nothing is heard of one for long.
func (s *Tracker) Step() {
	s.set(func(now time.Time) {
		if !s.writing.IsZero() {
			s.writing = now
		}
	})
}

// Written notes the end of a round that began some time ago. full is whether it compared all; err is why changes still
// wait: until a round has compared all, and written it.
func (s *Tracker) Written(since time.Duration, full bool, err error) {
	kind := s.metrics.partial
	if full {
		kind = s.metrics.full
	}
	s.metrics.duration.Observe(since.Seconds())
	kind.Observe(since.Seconds())
	s.set(func(now time.Time) {
		before := s.rounds.Error
		s.writing, s.rounds.Running = time.Time{}, time.Time{}
		s.rounds.add(since, err)
		switch s.failed = err != nil || s.failed && !full; {
		case err != nil:
			if s.waiting.IsZero() {
				s.waiting = now
			}
			return
		case s.failed:
			s.rounds.Error = before
			return
		case !full && s.rounds.First.IsZero(): // not all has been written yet
			return
		}
		s.waiting = time.Time{}
		s.rounds.succeeded(now)
		written := s.begun.triggers - s.done.triggers
		for _, at := range s.triggers[:written] {
			s.metrics.programming.Observe(now.Sub(at).Seconds())
		}
		s.triggers, s.done = slices.Delete(s.triggers, 0, written), s.begun
	})
}

// Joined notes the end of a round that joins the node with others.
func (s *Tracker) Joined(since time.Duration, err error) {
	s.metrics.joining.Observe(since.Seconds())
	s.set(func(now time.Time) {
		if s.nodes.add(since, err); err == nil {
			s.nodes.succeeded(now)
		}
	})
}

// add notes the end of a round.
func (r *Rounds) add(took time.Duration, err error) {
	r.Number++
	r.Took, r.Error = took.Seconds(), ""
	r.Longest, r.Mean = max(r.Longest, r.Took), r.Mean+(r.Took-r.Mean)/float64(r.Number)
	if err != nil {
		r.Failed++
		r.Error = err.Error()
	}
}

// succeeded notes when what there was to do was done.
func (r *Rounds) succeeded(now time.Time) {
	if r.Last = now; r.First.IsZero() {
		r.First = now
	}
}

// Verb notes that the agent has done a verb of the CNI plugin. failed is that the plugin prints an error.
func (s *Tracker) Verb(verb string, took time.Duration, failed bool) {
	result := "done"
	if failed {
		result = "failed"
	}
	s.metrics.verbs.WithLabelValues(verb, result).Observe(took.Seconds())
}

// Report returns a report of the rounds, of why the cluster cannot be read, and of what is degraded.
func (s *Tracker) Report() (r Report) {
	s.set(func(now time.Time) {
		r = Report{Schema: Schema, Time: now, Unread: s.unread, Warnings: s.degradedLines(), Sync: s.rounds, Nodes: s.nodes}
		r.Sync.Waiting = s.waiting
	})
	return r
}

func (s *state) degradedLines() (lines []string) {
	for _, of := range slices.Sorted(maps.Keys(s.degraded)) {
		lines = append(lines, of+": degraded: "+s.degraded[of])
	}
	return lines
}

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

// Probes returns what answers at /healthz; /livez, which tells whether rounds end, however they do: a new process would
// meet the same errors; and /readyz, which tells whether all has been written once.
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

// ServeAt lets a handler answer at a listener, which it closes, until the context ends.
func ServeAt(ctx context.Context, listener net.Listener, handler http.Handler) error {
	return serveUntil(ctx, listener, &http.Server{
		Handler: handler, ReadTimeout: requestTimeout, WriteTimeout: requestTimeout, IdleTimeout: lateAfter,
	})
}

// Serve is as ServeAt, at an address, "192.0.2.1:10256". Errors: those of net.Listen.
func Serve(ctx context.Context, address string, handler http.Handler) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return ServeAt(ctx, listener, handler)
}
