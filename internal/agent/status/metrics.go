// SPDX-License-Identifier: Apache-2.0

package status

import (
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"mustang/internal/version"
)

// Subsystems of metrics. Metrics with the meaning of a kube-proxy metric have its name (pkg/proxy/metrics of Kubernetes
// 1.34), so that dashboards and alerts work unchanged: "rules" are rows of the datapath here.
const kubeproxy, ours = "kubeproxy_sync_proxy_rules_", "mustang_agent_"

// histograms are the metrics that are observed. Other metrics are computed from the state on a scrape.
type histograms struct {
	duration, full, partial, programming, joining prometheus.Histogram

	verbs   *prometheus.HistogramVec
	answers map[string]*prometheus.CounterVec // by path
}

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
	s.histograms = histograms{
		duration: histogram(kubeproxy+"duration_seconds", "Time of a round that writes what has changed.", rounds),
		full: histogram("kubeproxy_sync_full_proxy_rules_duration_seconds", "Time of a round that compares all.",
			rounds),
		partial: histogram("kubeproxy_sync_partial_proxy_rules_duration_seconds",
			"Time of a round that writes the changed services only.", rounds),
		programming: histogram("kubeproxy_network_programming_duration_seconds",
			"Time from the change of a pod or Service, as its EndpointSlice has it, until its backends are in the tables.",
			programming),
		joining: histogram(ours+"nodes_duration_seconds",
			"Time of a round that joins the node with others: routes, tunnel, firewall, configuration of pods.", rounds),
		verbs: create.NewHistogramVec(prometheus.HistogramOpts{Name: ours + "cni_duration_seconds",
			Help: "Time of a verb of the CNI plugin.", Buckets: rounds}, []string{"verb", "result"}),
		answers: map[string]*prometheus.CounterVec{},
	}
	s.verbs.WithLabelValues("ADD", "done") // it is there before the first pod
	for path, name := range map[string]string{"/healthz": "proxy_healthz_total", "/livez": "proxy_livez_total"} {
		s.answers[path] = create.NewCounterVec(prometheus.CounterOpts{Name: "kubeproxy_" + name,
			Help: "Answers at " + path + ", by HTTP status."}, []string{"code"})
	}
}

// collect sends the metrics that are computed from the state.
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
			"Objects that do not have in force all that they ask for, as mustang agent status --wrong tells.", c.Wrong, "kind",
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
