// SPDX-License-Identifier: Apache-2.0

package status

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics are those of an agent. Those that mean the same as kube-proxy's have its names (pkg/proxy/metrics of Kubernetes 1.34), so
// that dashboards and alerts stay: "rules" are rows of the datapath here.
type metrics struct {
	duration, full, partial, programming, joining prometheus.Histogram
	queued, written, joined                       prometheus.Gauge
	failed, unjoined                              prometheus.Counter
	services, backends, unread, degraded          prometheus.Gauge
	endpointsPending, servicesPending             prometheus.Gauge
	endpointsTotal, servicesTotal                 prometheus.Counter
	noLocal, refused                              *prometheus.GaugeVec
	verbs                                         *prometheus.HistogramVec
	answers                                       map[string]*prometheus.CounterVec // by the path that was asked
}

// newMetrics registers the metrics.
func newMetrics(registry *prometheus.Registry) metrics {
	create := promauto.With(registry)
	const kubeproxy, ours = "kubeproxy", "mustang_agent"
	histogram := func(subsystem, name, help string, buckets []float64) prometheus.Histogram {
		return create.NewHistogram(prometheus.HistogramOpts{Subsystem: subsystem, Name: name, Help: help, Buckets: buckets})
	}
	gauge := func(subsystem, name, help string) prometheus.Gauge {
		return create.NewGauge(prometheus.GaugeOpts{Subsystem: subsystem, Name: name, Help: help})
	}
	counter := func(subsystem, name, help string) prometheus.Counter {
		return create.NewCounter(prometheus.CounterOpts{Subsystem: subsystem, Name: name, Help: help})
	}
	answers := func(name, path string) *prometheus.CounterVec {
		o := prometheus.CounterOpts{Subsystem: kubeproxy, Name: name, Help: "Answers at " + path + ", by HTTP status."}
		return create.NewCounterVec(o, []string{"code"})
	}
	rounds := prometheus.ExponentialBuckets(0.0005, 2, 16) // 0.5 ms to 16 s
	programming := slices.Concat(prometheus.LinearBuckets(0.25, 0.25, 2), prometheus.LinearBuckets(1, 1, 59),
		prometheus.LinearBuckets(60, 5, 12), prometheus.LinearBuckets(120, 30, 7)) // those of kube-proxy
	m := metrics{
		duration: histogram(kubeproxy, "sync_proxy_rules_duration_seconds", "Time of a round that writes what has changed.", rounds),
		full:     histogram(kubeproxy, "sync_full_proxy_rules_duration_seconds", "Time of a round that compares all.", rounds),
		partial:  histogram(kubeproxy, "sync_partial_proxy_rules_duration_seconds", "Time of a round that writes the changed services only.", rounds),
		programming: histogram(kubeproxy, "network_programming_duration_seconds",
			"Time from the change of a pod or Service, as its EndpointSlice has it, until its backends are in the tables.", programming),
		queued:  gauge(kubeproxy, "sync_proxy_rules_last_queued_timestamp_seconds", "When the last change came."),
		written: gauge(kubeproxy, "sync_proxy_rules_last_timestamp_seconds", "When the last round ended without an error."),
		failed:  counter(ours, "failed_rounds_total", "Rounds that ended with an error, after which all is compared again."),

		endpointsPending: gauge(kubeproxy, "sync_proxy_rules_endpoint_changes_pending", "Changes of EndpointSlices that are not in the tables yet."),
		endpointsTotal:   counter(kubeproxy, "sync_proxy_rules_endpoint_changes_total", "Changes of EndpointSlices that came."),
		servicesPending:  gauge(kubeproxy, "sync_proxy_rules_service_changes_pending", "Changes of Services that are not in the tables yet."),
		servicesTotal:    counter(kubeproxy, "sync_proxy_rules_service_changes_total", "Changes of Services that came."),

		services: gauge(ours, "services", "Frontends that there are to be: address, port and protocol."),
		backends: gauge(ours, "backends", "Backends of these frontends."),
		joining:  histogram(ours, "nodes_duration_seconds", "Time of a round that joins the node with others: routes, tunnel, firewall, configuration of pods.", rounds),
		joined:   gauge(ours, "nodes_last_timestamp_seconds", "When the last round that joins nodes ended without an error."),
		unjoined: counter(ours, "failed_nodes_rounds_total", "Rounds that join nodes and ended with an error."),
		noLocal: create.NewGaugeVec(prometheus.GaugeOpts{
			Subsystem: kubeproxy, Name: "sync_proxy_rules_no_local_endpoints_total",
			Help: "Services with a Local traffic policy and without an endpoint on this node that serves, while others do.",
		}, []string{"traffic_policy"}),
		refused: create.NewGaugeVec(prometheus.GaugeOpts{
			Subsystem: ours, Name: "objects_refused", Help: "Objects that do not have in force all that they ask for, as mustang agent status --wrong tells.",
		}, []string{"kind"}),
		degraded: gauge(ours, "degraded", "1 while the node keeps an earlier state of services or policies, since a map is full; else 0."),
		unread:   gauge(ours, "cluster_unread", "1 while objects of the API server cannot be read: all stays as it was; else 0."),
		verbs: create.NewHistogramVec(prometheus.HistogramOpts{
			Subsystem: ours, Name: "cni_duration_seconds", Help: "Time of a verb of the CNI plugin.", Buckets: rounds,
		}, []string{"verb", "result"}),
		answers: map[string]*prometheus.CounterVec{"/healthz": answers("proxy_healthz_total", "/healthz"), "/livez": answers("proxy_livez_total", "/livez")},
	}
	m.verbs.WithLabelValues("ADD", "done") // it is there before the first pod
	m.refused.WithLabelValues("service")
	m.noLocal.WithLabelValues("internal")
	m.noLocal.WithLabelValues("external")
	return m
}
