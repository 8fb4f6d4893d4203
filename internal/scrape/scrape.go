// SPDX-License-Identifier: Apache-2.0

// Package scrape answers Prometheus without being worn out by whoever else asks.
package scrape

import (
	"errors"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
)

const (
	// atOnce is how many clients' metrics are gathered at a time: each walks tables.
	atOnce = 2
	// patience is how long a client waits for its turn.
	patience = 5 * time.Second
)

// Handler answers with what a gatherer gathers. A client waits until it is its turn, some seconds at most, and keeps it no longer than
// gathering takes: one that reads slowly, or not at all, is in nobody's way.
func Handler(from prometheus.Gatherer, options promhttp.HandlerOpts) http.Handler {
	return promhttp.HandlerFor(queue{from, make(chan struct{}, atOnce)}, options)
}

type queue struct {
	from  prometheus.Gatherer
	turns chan struct{}
}

// Gather waits for a turn and gathers.
func (q queue) Gather() ([]*dto.MetricFamily, error) {
	select {
	case q.turns <- struct{}{}:
	case <-time.After(patience):
		return nil, errors.New("too many clients ask for metrics")
	}
	defer func() { <-q.turns }()
	return q.from.Gather()
}
