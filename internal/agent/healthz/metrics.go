// SPDX-License-Identifier: Apache-2.0

package healthz

import "github.com/prometheus/client_golang/prometheus"

// metrics are those of an agent. Those that mean the same as kube-proxy's have its names (pkg/proxy/metrics of Kubernetes 1.34), so
// that dashboards and alerts stay: "rules" are rows of the datapath here.
type metrics struct {
	duration, full, partial prometheus.Histogram
	queued, written         prometheus.Gauge
	failed                  prometheus.Counter
	services, backends      prometheus.Gauge
}

func newMetrics() metrics {
	buckets := prometheus.ExponentialBuckets(0.0005, 2, 16) // 0.5 ms to 16 s
	histogram := func(name, help string) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Subsystem: "kubeproxy", Name: name, Help: help, Buckets: buckets})
	}
	gauge := func(subsystem, name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Subsystem: subsystem, Name: name, Help: help})
	}
	return metrics{
		duration: histogram("sync_proxy_rules_duration_seconds", "Time of a round that writes what has changed."),
		full:     histogram("sync_full_proxy_rules_duration_seconds", "Time of a round that compares all."),
		partial:  histogram("sync_partial_proxy_rules_duration_seconds", "Time of a round that writes the changed services only."),
		queued:   gauge("kubeproxy", "sync_proxy_rules_last_queued_timestamp_seconds", "When the last change came."),
		written:  gauge("kubeproxy", "sync_proxy_rules_last_timestamp_seconds", "When the last round ended without an error."),
		failed: prometheus.NewCounter(prometheus.CounterOpts{
			Subsystem: "mustang_agent", Name: "failed_rounds_total", Help: "Rounds that ended with an error, after which all is compared again.",
		}),
		services: gauge("mustang_agent", "services", "Frontends that there are to be: address, port and protocol."),
		backends: gauge("mustang_agent", "backends", "Backends of these frontends."),
	}
}

func (m metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.duration, m.full, m.partial, m.queued, m.written, m.failed, m.services, m.backends}
}
