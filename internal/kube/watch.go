// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"net/url"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// Calls are the callbacks of a watch. It calls none after its end.
type Calls struct {
	On     func(Event) // called for each object, and again whenever one changes or goes, one call at a time
	Synced func()      // called once, after On has had all objects that existed at the start
	// Failing is called with the reason, in one line, why kinds cannot be read, and with nil once all can be read again.
	Failing func(error)
}

// Watch calls back for the objects of the kinds until the context ends. Without an API server, objects stay unchanged.
func (c *Client) Watch(ctx context.Context, kinds []Kind, calls Calls) {
	w := &watcher{Calls: calls, missing: len(kinds), kinds: kinds, host: c.host, trouble: map[string]error{}}
	ctx = klog.NewContext(ctx, klog.Logger{}) // it would say the same of each kind, again and again
	var all sync.WaitGroup
	all.Go(func() { w.report(ctx) })
	for _, kind := range kinds {
		all.Go(func() {
			s := &store{watcher: w, kind: kind, names: map[cache.ObjectName]bool{}}
			r := cache.NewReflectorWithOptions(c.list(s), &unstructured.Unstructured{}, s,
				cache.ReflectorOptions{Name: kind.Resource})
			r.RunWithContext(ctx)
		})
	}
	all.Wait()
}

// errNoWatchList makes a reflector use a list, not the watch that is the default of later library versions.
var errNoWatchList = errors.New("lists are read as such")

// list returns the ListWatch of a kind. It hands out the items of a list while it reads it, and returns their names.
func (c *Client) list(s *store) *cache.ListWatch {
	at := s.kind // as the cluster serves it
	with := func(o metav1.ListOptions) metav1.ListOptions {
		o.LabelSelector = s.kind.Labels
		return o
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (_ runtime.Object, err error) {
			names := &metav1.PartialObjectMetadataList{}
			bounded, cancel := context.WithTimeout(ctx, c.readWithin)
			defer cancel()
			switch at, err = c.served(bounded, s.kind); {
			case err != nil:
			case at.Version == "":
				err = s.undefined()
			default:
				names, err = c.stream(bounded, at, with(o), s.put)
			}
			s.note(ctx, err)
			return names, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			if o.SendInitialEvents != nil {
				return nil, errNoWatchList
			}
			if at.Version == "" {
				return nil, errors.New("no definition") // the next list asks again, in a minute at most
			}
			bounded, cancel := context.WithTimeout(ctx, time.Duration(*o.TimeoutSeconds)*time.Second+c.watchBeyond)
			w, err := c.dynamic.Resource(at.resource()).Watch(bounded, with(o))
			// a list follows, and reports the error
			if !apierrors.IsNotFound(err) && !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
				s.note(ctx, err)
			}
			if err != nil {
				cancel()
				return nil, err
			}
			return &boundedWatch{w, cancel}, nil
		},
	}
}

type boundedWatch struct {
	watch.Interface
	cancel context.CancelFunc
}

// Stop ends the watch and its context.
func (w *boundedWatch) Stop() {
	w.Interface.Stop()
	w.cancel()
}

type watcher struct {
	Calls
	kinds   []Kind
	host    string
	mu      sync.Mutex
	missing int              // kinds without a first list
	trouble map[string]error // why kinds cannot be read, by resource
}

// gather is how long errors must stay the same before they are reported: most affect all kinds, one after the other.
const gather = time.Second

func (w *watcher) report(ctx context.Context) {
	ticker := time.NewTicker(gather)
	defer ticker.Stop()
	for reported, last := "", ""; ; {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		err, text := w.err(), ""
		if err != nil {
			text = err.Error()
		}
		if text == last && text != reported {
			reported = text
			w.Failing(err)
		}
		last = text
	}
}

// err returns the error of the first kind that cannot be read, without the request, which differs each time.
func (w *watcher) err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, k := range w.kinds {
		err, hint := w.trouble[k.Resource], ""
		if err == nil {
			continue
		}
		if request := (*url.Error)(nil); errors.As(err, &request) {
			err = request.Err
		}
		if dial := (*net.OpError)(nil); errors.As(err, &dial) && dial.Op == "dial" {
			err = dial.Err
		}
		if apierrors.IsForbidden(err) {
			hint = " (apply the ClusterRoleBinding)"
		}
		return fmt.Errorf("cannot read the cluster: %s: %w%s", w.host, err, hint)
	}
	return nil
}

type store struct {
	*watcher
	kind   Kind
	names  map[cache.ObjectName]bool
	listed bool
}

func (s *store) note(ctx context.Context, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		delete(s.trouble, s.kind.Resource)
	} else if ctx.Err() == nil {
		s.trouble[s.kind.Resource] = err
	}
}

// undefined returns an error if objects are known: deleting a definition deletes its objects first.
func (s *store) undefined() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.names) > 0 {
		return fmt.Errorf("the definition of %s is gone, its %d objects were not deleted: what is installed stays",
			s.kind.Resource, len(s.names))
	}
	return nil
}

func (s *store) put(e Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.names[cache.ObjectName{Namespace: e.Namespace, Name: e.Name}] = true
	e.Kind = s.kind
	s.On(e)
}

func (s *store) remove(n cache.ObjectName) {
	delete(s.names, n)
	s.On(Event{Kind: s.kind, Namespace: n.Namespace, Name: n.Name})
}

// Add hands out an object.
func (s *store) Add(object any) error {
	o := object.(*unstructured.Unstructured)
	unstructured.RemoveNestedField(o.Object, "metadata", "managedFields")
	data, err := o.MarshalJSON()
	if err == nil {
		s.put(Event{Namespace: o.GetNamespace(), Name: o.GetName(), Object: data})
	}
	return err
}

// Update hands out an object that has changed.
func (s *store) Update(object any) error { return s.Add(object) }

// Delete hands out the deletion of an object.
func (s *store) Delete(object any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(nameOf(object))
	return nil
}

func nameOf(object any) cache.ObjectName { return cache.MetaObjectToName(object.(metav1.Object)) }

// Replace hands out deletions of objects that a list lacks; put has handed out the objects in the list.
func (s *store) Replace(list []any, _ string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	listed := make(map[cache.ObjectName]bool, len(list))
	for _, object := range list {
		listed[nameOf(object)] = true
	}
	for n := range s.names {
		if !listed[n] {
			s.remove(n)
		}
	}
	if !s.listed {
		s.listed = true
		if s.missing--; s.missing == 0 {
			s.Synced()
		}
	}
	return nil
}

// Resync does nothing: the caller stores the objects.
func (s *store) Resync() error { return nil }

var definitions = Kind{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// served returns a kind at the version that its definition serves; none without a definition. Group lists omit kinds
// while an API server starts. A 404 of a proxy, which names no definition, is an error.
func (c *Client) served(ctx context.Context, k Kind) (Kind, error) {
	if k.Former == "" {
		return k, nil
	}
	name := k.Resource + "." + k.Group
	o, err := c.dynamic.Resource(definitions.resource()).Get(ctx, name, metav1.GetOptions{})
	if s := new(apierrors.StatusError); errors.As(err, &s) && apierrors.IsNotFound(s) && s.ErrStatus.Details != nil &&
		s.ErrStatus.Details.Name == name {
		return Kind{}, nil
	}
	if err != nil {
		return k, fmt.Errorf("get the definition of %s, as the ClusterRole of this version allows: %w", name, err)
	}
	versions, _, _ := unstructured.NestedSlice(o.Object, "spec", "versions") // if it is not a slice, no version is served
	for _, version := range []string{k.Version, k.Former} {
		for _, v := range versions {
			if v, ok := v.(map[string]any); ok && v["served"] == true && v["name"] == version {
				k.Version = version
				return k, nil
			}
		}
	}
	return k, fmt.Errorf("%s is served neither as %s nor as %s: what is installed stays", name, k.Version, k.Former)
}

// Warning is a warning about an object that cannot be served unchanged.
type Warning struct {
	Kind            Kind
	Namespace, Name string
	Reason          string // one word, "NotServed"
	Text            string
	Everywhere      bool // set if the agents of all nodes report the same
}

// Warn stores an Event about an object, as `kubectl describe` shows it: from a node's agent, or one for all nodes if
// node is empty. The same warning again only changes the time of its Event. It does nothing if the object is gone.
func (c *Client) Warn(ctx context.Context, node string, w Warning) error {
	if err := c.warn(ctx, node, w); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("event of %s %s/%s: %w", w.Kind.Resource, w.Namespace, w.Name, err)
	}
	return nil
}

func (c *Client) warn(ctx context.Context, node string, w Warning) error {
	at, err := c.served(ctx, w.Kind)
	if err != nil || at.Version == "" {
		return err
	}
	o, err := c.dynamic.Resource(at.resource()).Namespace(w.Namespace).Get(ctx, w.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	hash := fnv.New64a()
	_, _ = fmt.Fprint(hash, node, o.GetUID(), w.Reason, w.Text) // it never fails
	now := time.Now().UTC().Format(time.RFC3339)
	namespace := cmp.Or(w.Namespace, metav1.NamespaceDefault)
	source := map[string]any{"component": "mustang-agent"}
	if node != "" {
		source["host"] = node
	}
	event := map[string]any{
		"apiVersion": "v1", "kind": "Event", "type": "Warning", "reason": w.Reason, "message": w.Text,
		"metadata": map[string]any{"namespace": namespace, "name": fmt.Sprintf("%s.%x", w.Name, hash.Sum64())},
		"involvedObject": map[string]any{
			"apiVersion": o.GetAPIVersion(), "kind": o.GetKind(), "namespace": w.Namespace, "name": w.Name, "uid": string(
				o.GetUID()),
		},
		"source": source, "firstTimestamp": now, "lastTimestamp": now, "count": int64(1),
	}
	to := c.dynamic.Resource(schema.GroupVersionResource{Version: "v1", Resource: "events"}).Namespace(namespace)
	object := &unstructured.Unstructured{Object: event}
	_, err = to.Create(ctx, object, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		patch := fmt.Appendf(nil, `{"lastTimestamp": %q}`, now)
		_, err = to.Patch(ctx, object.GetName(), types.MergePatchType, patch, metav1.PatchOptions{})
		if apierrors.IsConflict(err) {
			err = nil // the agents of other nodes set the time just now
		}
	}
	return err
}
