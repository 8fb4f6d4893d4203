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

// metrics are those of an agent that are observed. The others are read from its state.
type metrics struct {
	duration, full, partial, programming, joining prometheus.Histogram
	verbs                                         *prometheus.HistogramVec
	answers                                       map[string]*prometheus.CounterVec // by the path that was asked
}

// Subsystems of metrics. Those that mean the same as kube-proxy's have its names (pkg/proxy/metrics of Kubernetes
// 1.34), so that dashboards and alerts stay: "rules" are rows of the datapath here.
const kubeproxy, ours = "kubeproxy", "mustang_agent"

// read are the metrics that are read from the state. Those with _total are counters, if they have no label.
var read = []struct {
	subsystem, name string
	labels          prometheus.Labels
	help            string
	value           func(s *state) float64
}{
	{kubeproxy, "sync_proxy_rules_last_queued_timestamp_seconds", nil,
		"When the last change came.", func(s *state) float64 { return seconds(s.queued) }},
	{kubeproxy, "sync_proxy_rules_last_timestamp_seconds", nil,
		"When the last round ended without an error.", func(s *state) float64 { return seconds(s.rounds.Last) }},
	{ours, "failed_rounds_total", nil, "Rounds that ended with an error, after which all is compared again.",
		func(s *state) float64 { return float64(s.rounds.Failed) }},
	{kubeproxy, "sync_proxy_rules_endpoint_changes_pending", nil,
		"Changes of EndpointSlices that are not in the tables yet.",
		func(s *state) float64 { return float64(s.came.endpoints - s.done.endpoints) }},
	{kubeproxy, "sync_proxy_rules_endpoint_changes_total", nil,
		"Changes of EndpointSlices that came.", func(s *state) float64 { return float64(s.came.endpoints) }},
	{kubeproxy, "sync_proxy_rules_service_changes_pending", nil, "Changes of Services that are not in the tables yet.",
		func(s *state) float64 { return float64(s.came.services - s.done.services) }},
	{kubeproxy, "sync_proxy_rules_service_changes_total", nil,
		"Changes of Services that came.", func(s *state) float64 { return float64(s.came.services) }},
	{kubeproxy, "sync_proxy_rules_no_local_endpoints_total", prometheus.Labels{"traffic_policy": "internal"}, noLocal,
		func(s *state) float64 { return float64(s.counts.NoLocalInternal) }},
	{kubeproxy, "sync_proxy_rules_no_local_endpoints_total", prometheus.Labels{"traffic_policy": "external"}, noLocal,
		func(s *state) float64 { return float64(s.counts.NoLocalExternal) }},
	{ours, "services", nil, "Frontends that there are to be: address, port and protocol.",
		func(s *state) float64 { return float64(s.counts.Services) }},
	{ours, "backends", nil, "Backends of these frontends.", func(s *state) float64 { return float64(s.counts.Backends) }},
	{ours, "nodes_last_timestamp_seconds", nil, "When the last round that joins nodes ended without an error.",
		func(s *state) float64 { return seconds(s.nodes.Last) }},
	{ours, "failed_nodes_rounds_total", nil, "Rounds that join nodes and ended with an error.",
		func(s *state) float64 { return float64(s.nodes.Failed) }},
	{ours, "degraded", nil,
		"1 while the node keeps an earlier state of services or policies, since a map is full; else 0.",
		func(s *state) float64 { return float64(min(1, len(s.degraded))) }},
	{ours, "cluster_unread", nil, "1 while objects of the API server cannot be read: all stays as it was; else 0.",
		func(s *state) float64 { return float64(min(1, len(s.unread))) }},
}

const noLocal = "Services with a Local traffic policy and without an endpoint on this node that serves, while " +
	"others do."

// register registers the metrics.
func (s *Tracker) register() {
	create := promauto.With(s.registry)
	add := func(subsystem, name, help string, labels prometheus.Labels, value func(*state) float64) {
		get := func() float64 {
			s.mu.Lock()
			defer s.mu.Unlock()
			return value(&s.state)
		}
		o := prometheus.Opts{Subsystem: subsystem, Name: name, Help: help, ConstLabels: labels}
		if strings.HasSuffix(name, "_total") && labels == nil {
			create.NewCounterFunc(prometheus.CounterOpts(o), get)
		} else {
			create.NewGaugeFunc(prometheus.GaugeOpts(o), get)
		}
	}
	for _, m := range read {
		add(m.subsystem, m.name, m.help, m.labels, m.value)
	}
	refused := prometheus.NewDesc("mustang_agent_objects_refused",
		"Objects that do not have in force all that they ask for, as mustang agent status --wrong tells.",
		[]string{"kind"}, nil)
	s.registry.MustRegister(prometheus.CollectorFunc(func(to chan<- prometheus.Metric) {
		for _, c := range s.Refused() {
			to <- prometheus.MustNewConstMetric(refused, prometheus.GaugeValue, float64(c.Wrong), c.Kind)
		}
	}))
	add(ours, "build_info", "1, with the version of the program.", prometheus.Labels{"version": version.Program()},
		func(*state) float64 { return 1 })
	s.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))

	rounds := prometheus.ExponentialBuckets(0.0005, 2, 16) // 0.5 ms to 16 s
	programming := slices.Concat(prometheus.LinearBuckets(0.25, 0.25, 2), prometheus.LinearBuckets(1, 1, 59),
		prometheus.LinearBuckets(60, 5, 12), prometheus.LinearBuckets(120, 30, 7)) // those of kube-proxy
	m := &s.metrics
	for _, h := range []struct {
		to                    *prometheus.Histogram
		subsystem, name, help string
		buckets               []float64
	}{
		{&m.duration, kubeproxy, "sync_proxy_rules_duration_seconds", "Time of a round that writes what has changed.",
			rounds},
		{&m.full, kubeproxy, "sync_full_proxy_rules_duration_seconds", "Time of a round that compares all.", rounds},
		{&m.partial, kubeproxy, "sync_partial_proxy_rules_duration_seconds",
			"Time of a round that writes the changed services only.", rounds},
		{&m.programming, kubeproxy, "network_programming_duration_seconds",
			"Time from the change of a pod or Service, as its EndpointSlice has it, until its backends are in the tables.",
			programming},
		{&m.joining, ours, "nodes_duration_seconds",
			"Time of a round that joins the node with others: routes, tunnel, firewall, configuration of pods.", rounds},
	} {
		*h.to = create.NewHistogram(prometheus.HistogramOpts{Subsystem: h.subsystem, Name: h.name, Help: h.help,
			Buckets: h.buckets})
	}
	m.verbs = create.NewHistogramVec(prometheus.HistogramOpts{
		Subsystem: ours, Name: "cni_duration_seconds", Help: "Time of a verb of the CNI plugin.", Buckets: rounds,
	}, []string{"verb", "result"})
	m.verbs.WithLabelValues("ADD", "done") // it is there before the first pod
	m.answers = map[string]*prometheus.CounterVec{}
	for path, name := range map[string]string{"/healthz": "proxy_healthz_total", "/livez": "proxy_livez_total"} {
		o := prometheus.CounterOpts{Subsystem: kubeproxy, Name: name, Help: "Answers at " + path + ", by HTTP status."}
		m.answers[path] = create.NewCounterVec(o, []string{"code"})
	}
}

// seconds is a time in seconds since 1970; 0: never.
func seconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixNano()) / 1e9
}
