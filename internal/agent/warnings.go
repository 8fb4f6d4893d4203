// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"mustang/internal/kube"
	"mustang/internal/service/manifest"
)

// A warning is said again after a while: Kubernetes keeps events for an hour. There is room for some that wait, more than a namespace can say
// at once.
const (
	warnAgain  = 30 * time.Minute
	maxWaiting = 1000
	maxSaid    = 10_000
	maxText    = 1000 // bytes of a text, as an event may have
)

// An object, and all of a namespace together, have so much said of them at once, and then one more after a while: whoever may write an object
// can have it changed many times a second. That of an object is what client-go has for events.
var (
	ofObject    = limit{25, 5 * time.Minute}
	ofNamespace = limit{100, 30 * time.Second}
)

// limit is how much can be said at once, and how long it takes until there is room for one more.
type limit struct {
	burst int
	every time.Duration
}

// bucket is how much has been said; it leaks.
type bucket struct {
	used int
	at   time.Time // when used was right
}

// leak returns the bucket as it is now.
func (b bucket) leak(l limit, now time.Time) bucket {
	n := int(now.Sub(b.at) / l.every)
	if n >= b.used {
		return bucket{0, now}
	}
	return bucket{b.used - n, b.at.Add(time.Duration(n) * l.every)}
}

// Events are what users see of objects: of a node, or of all if that is empty. *kube.Client is one.
type Events interface {
	Warn(ctx context.Context, node string, w kube.Warning) error
}

// warnings are what there is to say of objects, in the log and as events.
type warnings struct {
	log        *slog.Logger
	said       map[kube.Warning]time.Time
	objects    map[object]bucket
	namespaces map[string]bucket
	waiting    chan kube.Warning
}

func newWarnings(log *slog.Logger) *warnings {
	return &warnings{log, map[kube.Warning]time.Time{}, map[object]bucket{}, map[string]bucket{}, make(chan kube.Warning, maxWaiting)}
}

// mayTell reports whether there is room to say something of an object, and takes it.
func (w *warnings) mayTell(v kube.Warning, now time.Time) bool {
	at := object{v.Kind.Resource, v.Namespace, v.Name}
	one, all := w.objects[at].leak(ofObject, now), w.namespaces[v.Namespace].leak(ofNamespace, now)
	if one.used >= ofObject.burst || all.used >= ofNamespace.burst {
		return false
	}
	if len(w.objects) >= maxSaid {
		clear(w.objects) // namespaces stay bounded
	}
	if len(w.namespaces) >= maxSaid {
		clear(w.namespaces)
	}
	one.used++
	all.used++
	w.objects[at], w.namespaces[v.Namespace] = one, all
	return true
}

// add says a warning, unless it was said a short while ago or there is too much to say of the object. It is for one goroutine at a time, and
// never waits: what there is no room for is in the log alone, and said again.
func (w *warnings) add(v kube.Warning) {
	now := time.Now()
	v.Text = cut(v.Text)
	if at, ok := w.said[v]; ok && now.Sub(at) < warnAgain || !w.mayTell(v, now) {
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

// note says in a line of the log what was left out of an object, unless there is too much to say of it.
func (w *warnings) note(of kube.Warning, notes []string) {
	if len(notes) > 0 && w.mayTell(of, time.Now()) {
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
				Kind: kube.Services, Namespace: n.Namespace, Name: n.Name, Reason: "NotServed", Text: strings.Join(texts, "; "), Everywhere: everywhere,
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
func (w *warnings) post(ctx context.Context, to Events, node string) {
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
