// SPDX-License-Identifier: Apache-2.0

package status

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"mustang/internal/version"
)

const (
	// lateAfter is the longest time that a change may wait to be written, and that a round may take: twice the period of
	// kube-proxy's full comparison.
	lateAfter   = time.Minute
	maxTriggers = 100_000 // stored times of changes that cannot be written
)

// Tracker follows the work of an agent, and answers probes of the agent, and of load balancers for its node. Paths and
// metrics are kube-proxy's (KEP-3836 for /healthz and /livez). Any goroutine may call its methods.
type Tracker struct {
	// Installed counts what should be installed, and Refused the objects that are not completely in force. Set both first.
	Installed func() Installed
	Refused   func() []Count

	registry                                      *prometheus.Registry
	duration, full, partial, programming, joining prometheus.Histogram
	verbs                                         *prometheus.HistogramVec
	answers                                       map[string]*prometheus.CounterVec // by path
	now                                           func() time.Time

	mu            sync.Mutex
	queued        time.Time // the last change
	waiting       time.Time // since when a change waits; zero: none does
	due           time.Time // since when a round has been due or runs; zero: none is
	leaving       bool
	unread        string
	degraded      map[string]string // why not all is written, by subject
	sync, nodes   Rounds            // an error of sync stays until a round has compared all
	came          changes
	begun, done   changes     // taken by the last round; written
	triggers      []time.Time // of changes that came
	takenTriggers int         // of these, by rounds
}

type changes struct{ services, endpoints int }

// Installed counts what should be installed: services with their backends, and the Services with a Local traffic policy
// but without a backend on this node.
type Installed struct{ Services, Backends, NoLocalInternal, NoLocalExternal int }

// NewTracker returns the tracker of an agent that has written nothing yet.
func NewTracker() *Tracker {
	s := &Tracker{registry: prometheus.NewRegistry(), now: time.Now, degraded: map[string]string{},
		Installed: func() Installed { return Installed{} }, Refused: func() []Count { return []Count{{Kind: Service}} }}
	s.register()
	return s
}

// Tell adds metrics to the agent's metrics.
func (s *Tracker) Tell(of prometheus.Collector) { s.registry.MustRegister(of) }

// TellLate adds the number of nodes that WireGuard cannot reach to the agent's metrics.
func (s *Tracker) TellLate(late func() ([]string, error)) {
	s.Tell(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "mustang_wireguard_peers_without_handshake",
		Help: "Nodes without a WireGuard handshake within the last 3 minutes; NaN: WireGuard cannot be read.",
	}, func() float64 {
		nodes, err := late()
		if err != nil {
			return math.NaN()
		}
		return float64(len(nodes))
	}))
}

func (s *Tracker) locked(do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do()
}

// SetLeaving notes whether the node is about to go: /healthz then fails, so that load balancers remove the node. /livez
// does not fail.
func (s *Tracker) SetLeaving(leaving bool) { s.locked(func() { s.leaving = leaving }) }

// SetUnread notes why the cluster cannot be read; nil: it can.
func (s *Tracker) SetUnread(err error) {
	s.locked(func() {
		if s.unread = ""; err != nil {
			s.unread = err.Error()
		}
	})
}

// SetDegraded notes why the node keeps an earlier state of some services or policies, for example a full map; empty:
// not degraded.
func (s *Tracker) SetDegraded(subject, why string) {
	s.locked(func() {
		if s.degraded[subject] = why; why == "" {
			delete(s.degraded, subject)
		}
	})
}

// Queued notes that a change waits to be written.
func (s *Tracker) Queued() {
	s.locked(func() {
		s.queued = s.now()
		s.waiting = cmp.Or(s.waiting, s.queued)
		if s.sync.Number > 0 { // before the first round, the agent reads the cluster: a restart would not be faster
			s.due = cmp.Or(s.due, s.queued)
		}
	})
}

// ServiceChanged counts a change of a Service that waits to be written.
func (s *Tracker) ServiceChanged() { s.locked(func() { s.came.services++ }) }

// EndpointsChanged counts a change of an EndpointSlice that waits to be written, and stores its trigger time; or zero.
func (s *Tracker) EndpointsChanged(triggered time.Time) {
	s.locked(func() {
		s.came.endpoints++
		if !triggered.IsZero() && len(s.triggers) < maxTriggers {
			s.triggers = append(s.triggers, triggered)
		}
	})
}

// Begin notes that a round takes all changes that wait.
func (s *Tracker) Begin() {
	s.locked(func() {
		s.begun, s.takenTriggers, s.sync.Running = s.came, len(s.triggers), s.now()
		s.due = cmp.Or(s.due, s.sync.Running)
	})
}

// Step notes progress of a round: without it, /livez fails after a minute.
func (s *Tracker) Step() {
	s.locked(func() {
		if !s.due.IsZero() {
			s.due = s.now()
		}
	})
}

// Written notes the end of a round and its duration. full is whether it compared all; err is why changes still wait,
// until a full round has succeeded.
func (s *Tracker) Written(took time.Duration, full bool, err error) {
	kind := map[bool]prometheus.Histogram{true: s.full, false: s.partial}[full]
	kind.Observe(took.Seconds())
	s.duration.Observe(took.Seconds())
	s.mu.Lock()
	defer s.mu.Unlock()
	now, failed := s.now(), s.sync.Error
	s.due, s.sync.Running = time.Time{}, time.Time{}
	s.sync.add(took, err)
	switch {
	case err != nil:
		s.waiting = cmp.Or(s.waiting, now)
		return
	case failed != "" && !full:
		s.sync.Error = failed
		return
	case !full && s.sync.First.IsZero(): // not all has been written yet
		return
	}
	s.sync.succeeded(now)
	for _, at := range s.triggers[:s.takenTriggers] {
		s.programming.Observe(now.Sub(at).Seconds())
	}
	s.triggers = slices.Delete(s.triggers, 0, s.takenTriggers)
	s.waiting, s.done, s.takenTriggers = time.Time{}, s.begun, 0
}

// Joined notes the end of a round that joins the node with others.
func (s *Tracker) Joined(took time.Duration, err error) {
	s.joining.Observe(took.Seconds())
	s.locked(func() {
		if s.nodes.add(took, err); err == nil {
			s.nodes.succeeded(s.now())
		}
	})
}

func (r *Rounds) add(took time.Duration, err error) {
	r.Number++
	r.Took, r.Error = took.Seconds(), ""
	r.Longest, r.Mean = max(r.Longest, r.Took), r.Mean+(r.Took-r.Mean)/float64(r.Number)
	if err != nil {
		r.Failed++
		r.Error = err.Error()
	}
}

func (r *Rounds) succeeded(now time.Time) { r.First, r.Last = cmp.Or(r.First, now), now }

// Verb notes that the agent has done a verb of the CNI plugin. failed is set if the plugin prints an error.
func (s *Tracker) Verb(verb string, took time.Duration, failed bool) {
	result := map[bool]string{false: "done", true: "failed"}[failed]
	s.verbs.WithLabelValues(verb, result).Observe(took.Seconds())
}

// Report reports the rounds, why the cluster cannot be read, and everything degraded.
func (s *Tracker) Report() Report {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := Report{Schema: Schema, Time: s.now(), Unread: s.unread, Warnings: s.degradedLines(), Sync: s.sync, Nodes: s.nodes}
	r.Sync.Waiting = s.waiting
	return r
}

func (s *Tracker) degradedLines() (lines []string) {
	for _, subject := range slices.Sorted(maps.Keys(s.degraded)) {
		lines = append(lines, subject+": degraded: "+s.degraded[subject])
	}
	return lines
}

// Metrics returns the handler of /metrics.
func (s *Tracker) Metrics() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{
		ErrorHandling: promhttp.ContinueOnError, // tables that cannot be read do not hide the agent itself
		Registry:      s.registry,
		// With a time-out answers are buffered: a slow client does not block others.
		MaxRequestsInFlight: 2, Timeout: 10 * time.Second,
	}))
	return mux
}

// Probes returns the handler of /healthz, /livez and /readyz. /livez is healthy if rounds end, even with errors: a new
// process would meet the same errors. /readyz is healthy once all has been written.
func (s *Tracker) Probes() http.Handler {
	mux := http.NewServeMux()
	for _, path := range []string{"/healthz", "/livez", "/readyz"} {
		mux.HandleFunc("GET "+path, s.answer)
	}
	return mux
}

// answer answers as kube-proxy does. While nothing waits, the time of the last update is now.
func (s *Tracker) answer(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	now := s.now()
	inTime := func(since time.Time) bool { return since.IsZero() || now.Sub(since) < lateAfter }
	updated, more, healthy := s.sync.Last, "", inTime(s.waiting)
	if s.waiting.IsZero() {
		updated = now
	}
	switch r.URL.Path {
	case "/livez":
		healthy = inTime(s.due)
	case "/healthz":
		healthy = healthy && !s.leaving
		more = fmt.Sprintf(`,"nodeEligible": %t`, !s.leaving)
		if lines := s.degradedLines(); len(lines) > 0 {
			more += fmt.Sprintf(`,"degraded": %q`, strings.Join(lines, "; "))
		}
	case "/readyz":
		healthy = healthy && !s.sync.Last.IsZero()
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
	if counter := s.answers[r.URL.Path]; counter != nil {
		counter.WithLabelValues(strconv.Itoa(code)).Inc()
	}
	w.WriteHeader(code)
	_, _ = fmt.Fprintf(w, `{"lastUpdated": %q,"currentTime": %q%s}`, updated, now, more) // the client may be gone
}

// Subsystems of metrics. Metrics with the meaning of a kube-proxy metric have its name (pkg/proxy/metrics of Kubernetes
// 1.34), so that dashboards and alerts work unchanged: "rules" are rows of the datapath here.
const kubeproxy, ours = "kubeproxy_sync_proxy_rules_", "mustang_agent_"

func (s *Tracker) register() {
	s.registry.MustRegister(prometheus.CollectorFunc(s.collect), collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	create := promauto.With(s.registry)
	rounds := prometheus.ExponentialBuckets(0.0005, 2, 16) // 0.5 ms to 16 s
	programming := slices.Concat(prometheus.LinearBuckets(0.25, 0.25, 2), prometheus.LinearBuckets(1, 1, 59),
		prometheus.LinearBuckets(60, 5, 12), prometheus.LinearBuckets(120, 30, 7)) // kube-proxy's
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return create.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
	}
	s.duration = histogram(kubeproxy+"duration_seconds", "Time of a round that writes what has changed.", rounds)
	s.full = histogram("kubeproxy_sync_full_proxy_rules_duration_seconds", "Time of a round that compares all.", rounds)
	s.partial = histogram("kubeproxy_sync_partial_proxy_rules_duration_seconds",
		"Time of a round that writes the changed services only.", rounds)
	s.programming = histogram("kubeproxy_network_programming_duration_seconds",
		"Time from the change of a pod or Service, as its EndpointSlice has it, until its backends are in the tables.",
		programming)
	s.joining = histogram(ours+"nodes_duration_seconds",
		"Time of a round that joins the node with others: routes, tunnel, firewall, configuration of pods.", rounds)
	s.verbs = create.NewHistogramVec(prometheus.HistogramOpts{Name: ours + "cni_duration_seconds",
		Help: "Time of a verb of the CNI plugin.", Buckets: rounds}, []string{"verb", "result"})
	s.verbs.WithLabelValues("ADD", "done") // it is there before the first pod
	s.answers = map[string]*prometheus.CounterVec{}
	for path, name := range map[string]string{"/healthz": "proxy_healthz_total", "/livez": "proxy_livez_total"} {
		s.answers[path] = create.NewCounterVec(prometheus.CounterOpts{Name: "kubeproxy_" + name,
			Help: "Answers at " + path + ", by HTTP status."}, []string{"code"})
	}
}

func (s *Tracker) collect(to chan<- prometheus.Metric) {
	const noLocal = "Services with a Local traffic policy and without an endpoint on this node that serves, while " +
		"others do."
	installed, kinds := s.Installed(), s.Refused() // before the lock: they take the agent's
	s.mu.Lock()
	defer s.mu.Unlock()
	send := func(name, help string, value float64, label ...string) {
		kind, names := prometheus.GaugeValue, label[:min(1, len(label))]
		if len(label) == 0 && strings.HasSuffix(name, "_total") {
			kind = prometheus.CounterValue
		}
		to <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, names, nil), kind, value, label[len(names):]...)
	}
	number := func(name, help string, n int, label ...string) { send(name, help, float64(n), label...) }
	send(kubeproxy+"last_queued_timestamp_seconds", "When the last change came.", seconds(s.queued))
	send(kubeproxy+"last_timestamp_seconds", "When the last round ended without an error.", seconds(s.sync.Last))
	number(ours+"failed_rounds_total", "Rounds that ended with an error, after which all is compared again.",
		s.sync.Failed)
	number(kubeproxy+"endpoint_changes_pending", "Changes of EndpointSlices that are not in the tables yet.",
		s.came.endpoints-s.done.endpoints)
	number(kubeproxy+"endpoint_changes_total", "Changes of EndpointSlices that came.", s.came.endpoints)
	number(kubeproxy+"service_changes_pending", "Changes of Services that are not in the tables yet.",
		s.came.services-s.done.services)
	number(kubeproxy+"service_changes_total", "Changes of Services that came.", s.came.services)
	number(kubeproxy+"no_local_endpoints_total", noLocal, installed.NoLocalInternal, "traffic_policy", "internal")
	number(kubeproxy+"no_local_endpoints_total", noLocal, installed.NoLocalExternal, "traffic_policy", "external")
	number(ours+"services", "Frontends that there are to be: address, port and protocol.", installed.Services)
	number(ours+"backends", "Backends of these frontends.", installed.Backends)
	send(ours+"nodes_last_timestamp_seconds", "When the last round that joins nodes ended without an error.",
		seconds(s.nodes.Last))
	number(ours+"failed_nodes_rounds_total", "Rounds that join nodes and ended with an error.", s.nodes.Failed)
	number(ours+"degraded",
		"1 while the node keeps an earlier state of services or policies, since a map is full; else 0.",
		min(1, len(s.degraded)))
	number(ours+"cluster_unread", "1 while objects of the API server cannot be read: all stays as it was; else 0.",
		min(1, len(s.unread)))
	number(ours+"build_info", "1, with the version of the program.", 1, "version", version.Program())
	for _, c := range kinds {
		number(ours+"objects_refused",
			"Objects that are not fully in force: mustang agent status --wrong lists them.", c.Wrong, "kind",
			c.Kind)
	}
}

// seconds is a time in seconds since 1970; 0: never.
func seconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixNano()) / 1e9
}
