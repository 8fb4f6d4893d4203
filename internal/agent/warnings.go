// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"mustang/internal/document"
	"mustang/internal/kube"
	"mustang/internal/service/manifest"
)

const (
	warnAgain  = 30 * time.Minute // Kubernetes keeps events for an hour
	maxWaiting = 1000             // events that wait; more than a namespace may cause at once
	maxSaid    = 10_000

	// spread is the time for each node within which one of them stores a warning of all nodes: 1,000 nodes take 20 s.
	spread = 20 * time.Millisecond

	// Warnings of a namespace: at once, and then one after a while. A user can change an object many times a second.
	warningsBurst = 100
	warningsEvery = 30 * time.Second
)

// warnings write warnings about objects to the log and as events. Only one goroutine at a time may call add and note.
type warnings struct {
	log        *slog.Logger
	said       map[kube.Warning]time.Time
	namespaces map[string]*rate.Limiter
	waiting    chan waiting
	// phase is when this node stores a warning of all nodes: a part of the time that spread gives them. The first node
	// stores it, and the others find it.
	phase float64
	nodes func() int // of the cluster
}

type waiting struct {
	kube.Warning
	since time.Time
}

func newWarnings(log *slog.Logger, nodes func() int) *warnings {
	return &warnings{log, map[kube.Warning]time.Time{}, map[string]*rate.Limiter{}, make(chan waiting, maxWaiting),
		rand.Float64(), nodes}
}

func (w *warnings) allow(namespace string) bool {
	if w.namespaces[namespace] == nil {
		if len(w.namespaces) >= maxSaid {
			clear(w.namespaces)
		}
		w.namespaces[namespace] = rate.NewLimiter(rate.Every(warningsEvery), warningsBurst)
	}
	return w.namespaces[namespace].Allow()
}

// add writes a warning, unless it was written recently or its namespace has too many. It never blocks: a full queue
// leaves it to the log.
func (w *warnings) add(v kube.Warning) {
	now := time.Now()
	v.Text = document.OneLine(v.Text)
	if at, ok := w.said[v]; ok && now.Sub(at) < warnAgain || !w.allow(v.Namespace) {
		return
	}
	w.log.Warn(v.Reason, "kind", v.Kind.Resource, "namespace", v.Namespace, "name", v.Name, "error", v.Text)
	if len(w.said) >= maxSaid {
		clear(w.said)
	}
	select {
	case w.waiting <- waiting{v, now}:
		w.said[v] = now
	default:
	}
}

func (w *warnings) notServed(why map[manifest.Name][]string, everywhere bool, of *serviceSet) {
	for _, n := range slices.SortedFunc(maps.Keys(why), manifest.Name.Compare) {
		if text := strings.Join(why[n], "; "); text != "" {
			w.add(kube.Warning{Kind: kube.Services, Namespace: n.Namespace, Name: n.Name,
				Created: of.cluster.Snapshot(n).Created(), // also before the first merge
				Reason:  "NotServed", Text: strings.ReplaceAll(text, "; Service "+n.String()+": ", "; "), Everywhere: everywhere})
		}
	}
}

// post stores events until the context ends. The text of a single node's event begins with its name.
func (w *warnings) post(ctx context.Context, to *kube.Client, node string) {
	for {
		select {
		case <-ctx.Done():
			return
		case v := <-w.waiting:
			from := node
			if v.Everywhere {
				from = ""
				due := v.since.Add(time.Duration(w.phase * float64(w.nodes()) * float64(spread)))
				select {
				case <-time.After(time.Until(due)):
				case <-ctx.Done():
				}
			} else if v.Kind != kube.Nodes {
				v.Text = document.OneLine("node " + node + ": " + v.Text)
			}
			if err := to.Warn(ctx, from, v.Warning); err != nil && ctx.Err() == nil {
				w.log.Info("no event", "error", err)
			}
		}
	}
}
