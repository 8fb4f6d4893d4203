// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"log/slog"
	"time"

	"mustang/internal/kube"
)

// A warning is said again after a while: Kubernetes keeps events for an hour. There is room for some that wait.
const (
	warnAgain  = 30 * time.Minute
	maxWaiting = 100
	maxSaid    = 10_000
)

// Events are what users see of objects. *kube.Client is one.
type Events interface {
	Warn(ctx context.Context, node string, w kube.Warning) error
}

// warnings are what there is to say of objects, in the log and as events.
type warnings struct {
	log     *slog.Logger
	said    map[kube.Warning]time.Time
	waiting chan kube.Warning
}

func newWarnings(log *slog.Logger) *warnings {
	return &warnings{log, map[kube.Warning]time.Time{}, make(chan kube.Warning, maxWaiting)}
}

// add says a warning, unless it was said a short while ago. It is for one goroutine at a time, and never waits: what there is no room
// for is in the log alone.
func (w *warnings) add(v kube.Warning) {
	now := time.Now()
	if at, ok := w.said[v]; ok && now.Sub(at) < warnAgain {
		return
	}
	if len(w.said) >= maxSaid {
		clear(w.said)
	}
	w.said[v] = now
	w.log.Warn(v.Reason, "kind", v.Kind.Resource, "namespace", v.Namespace, "name", v.Name, "error", v.Text)
	select {
	case w.waiting <- v:
	default:
	}
}

// post stores events until the context ends.
func (w *warnings) post(ctx context.Context, to Events, node string) {
	for {
		select {
		case <-ctx.Done():
			return
		case v := <-w.waiting:
			if err := to.Warn(ctx, node, v); err != nil && ctx.Err() == nil {
				w.log.Info("no event", "error", err)
			}
		}
	}
}
