// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"mustang/internal/kube"
	"mustang/internal/service/manifest"
)

// A warning is repeated after a while: Kubernetes keeps events for an hour. The queue is longer than what one namespace
// may say at once.
const (
	warnAgain  = 30 * time.Minute
	maxWaiting = 1000
	maxSaid    = 10_000
	maxText    = 1000 // bytes of a text, as an event may have
)

// The objects of a namespace have so many warnings at once, and then one more after a while: who may write an object
// can change it many times a second.
const (
	warningsBurst = 100
	warningsEvery = 30 * time.Second
)

// warnings write warnings about objects to the log and as events.
type warnings struct {
	log        *slog.Logger
	said       map[kube.Warning]time.Time
	namespaces map[string]*rate.Limiter
	waiting    chan kube.Warning
}

func newWarnings(log *slog.Logger) *warnings {
	return &warnings{log, map[kube.Warning]time.Time{}, map[string]*rate.Limiter{}, make(chan kube.Warning, maxWaiting)}
}

// allow reports whether a namespace may have another warning now, and counts it.
func (w *warnings) allow(namespace string) bool {
	of := w.namespaces[namespace]
	if of == nil {
		if len(w.namespaces) >= maxSaid {
			clear(w.namespaces)
		}
		of = rate.NewLimiter(rate.Every(warningsEvery), warningsBurst)
		w.namespaces[namespace] = of
	}
	return of.Allow()
}

// add writes a warning, unless the same one was written a while ago or its namespace has too many. It is for one
// goroutine at a time, and never waits: a warning that finds the queue full is in the log alone, and is written again.
func (w *warnings) add(v kube.Warning) {
	now := time.Now()
	v.Text = cut(v.Text)
	if at, ok := w.said[v]; ok && now.Sub(at) < warnAgain || !w.allow(v.Namespace) {
		return
	}
	w.log.Warn(v.Reason, "kind", v.Kind.Resource, "namespace", v.Namespace, "name", v.Name, "error", v.Text)
	select {
	case w.waiting <- v:
		if len(w.said) >= maxSaid {
			clear(w.said)
		}
		w.said[v] = now
	default:
	}
}

// note writes a line of the log about what was left out of an object, unless its namespace has too many.
func (w *warnings) note(of kube.Warning, notes []string) {
	if len(notes) > 0 && w.allow(of.Namespace) {
		w.log.Info(cut(strings.Join(notes, "; ")))
	}
}

// notServed says in a warning for each Service what it does not get, on this node or everywhere.
func (w *warnings) notServed(why map[manifest.Name][]string, everywhere bool) {
	for _, n := range slices.SortedFunc(maps.Keys(why), manifest.Name.Compare) {
		texts := slices.Clone(why[n])
		for i := range texts {
			if i > 0 {
				texts[i] = strings.TrimPrefix(texts[i], "Service "+n.String()+": ")
			}
		}
		if len(texts) > 0 {
			w.add(kube.Warning{
				Kind: kube.Services, Namespace: n.Namespace, Name: n.Name,
				Reason: "NotServed", Text: strings.Join(texts, "; "), Everywhere: everywhere,
			})
		}
	}
}

// cut returns a text of maxText bytes at most.
func cut(text string) string {
	const more = " ..."
	if len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(text[:maxText-len(more)], "") + more
}

// post stores events until the context ends. What a node alone has to say begins with its name.
func (w *warnings) post(ctx context.Context, to *kube.Client, node string) {
	for {
		select {
		case <-ctx.Done():
			return
		case v := <-w.waiting:
			from := node
			if v.Everywhere {
				from = ""
			} else if v.Kind != kube.Nodes {
				v.Text = cut("node " + node + ": " + v.Text)
			}
			if err := to.Warn(ctx, from, v); err != nil && ctx.Err() == nil {
				w.log.Info("no event", "error", err)
			}
		}
	}
}

// failing notes why the cluster cannot be read, in an event too; nil: it can.
func (a *Agent) failing(err error) {
	a.State.SetUnread(err)
	if err != nil {
		a.Log.Error(err.Error())
		select { // the log has it, be there room or not
		case a.warnings.waiting <- kube.Warning{Kind: kube.Nodes, Name: a.Node, Reason: "NotRead", Text: cut(err.Error())}:
		default:
		}
		return
	}
	a.Log.Info("the cluster can be read again")
}
