// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"net"
	"net/url"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/features"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// Calls are the callbacks of a watch. It calls none after its end.
type Calls struct {
	// On is called for each object, and again whenever it changes for the agent or goes, one call at a time.
	On     func(Event)
	Listed func(Kind) // called once for each kind, after On has had all objects that existed at the start
	// Failing is called with the reason, in one line, why kinds cannot be read, and with nil once all can be read again.
	Failing func(error)
	// Later are the kinds that are not read before a channel is closed.
	Later map[Kind]<-chan struct{}
}

// Watch calls back for the objects of the kinds until the context ends. Without an API server, objects stay unchanged.
func (c *Client) Watch(ctx context.Context, kinds []Kind, calls Calls) {
	w := &watcher{Calls: calls, kinds: kinds, host: c.host, trouble: map[Kind]error{}, seed: maphash.MakeSeed()}
	ctx = klog.NewContext(ctx, klog.Logger{}) // it would say the same of each kind, again and again
	var all sync.WaitGroup
	all.Go(func() { w.report(ctx) })
	for _, kind := range kinds {
		all.Go(func() {
			if start, ok := calls.Later[kind]; ok {
				select {
				case <-start:
				case <-ctx.Done():
				}
			}
			s := &store{watcher: w, kind: kind, digests: map[cache.ObjectName]uint64{}}
			of, _ := kind.empty()
			r := cache.NewReflectorWithOptions(c.list(s), of, s, cache.ReflectorOptions{Name: kind.Resource})
			r.RunWithContext(ctx)
		})
	}
	all.Wait()
}

// gates let a reflector read a list as a stream, object by object, where the API server can.
type gates struct{ features.Gates }

// Enabled reports whether the library uses a feature.
func (g gates) Enabled(f features.Feature) bool {
	return f == features.WatchListClient || g.Gates.Enabled(f)
}

func init() { features.ReplaceFeatureGates(gates{features.FeatureGates()}) }

// errNoStream makes a reflector use a list, which reports errors: for a kind whose definition is read first, and if an
// API server cannot send a list as a stream.
var errNoStream = errors.New("a list is read")

// list returns the ListWatch of a kind.
func (c *Client) list(s *store) *cache.ListWatch {
	at := s.kind // as the cluster serves it
	with := func(o metav1.ListOptions) metav1.ListOptions {
		o.LabelSelector, o.FieldSelector = s.kind.Labels, s.kind.Fields
		return o
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (list runtime.Object, err error) {
			list = &metav1.PartialObjectMetadataList{}
			bounded, cancel := context.WithTimeout(ctx, c.readWithin)
			defer cancel()
			switch at, err = c.served(bounded, s.kind); {
			case err != nil:
			case at.Version == "":
				err = s.undefined()
			default:
				list, err = c.listOf(bounded, at, with(o))
			}
			s.note(ctx, err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			if o.SendInitialEvents != nil && (s.kind.Former != "" || s.setStreams(true)) {
				return nil, errNoStream
			}
			if at.Version == "" {
				return nil, errors.New("no definition") // the next list asks again, in a minute at most
			}
			bounded, cancel := context.WithTimeout(ctx, time.Duration(*o.TimeoutSeconds)*time.Second+c.watchBeyond)
			w, err := c.watchOf(bounded, at, with(o))
			expired := apierrors.IsNotFound(err) || apierrors.IsResourceExpired(err) || apierrors.IsGone(err)
			switch streams := o.SendInitialEvents != nil; {
			case streams && err != nil:
				err = errNoStream
			case streams:
				time.AfterFunc(c.readWithin, func() {
					s.mu.Lock()
					stalled := s.streams && bounded.Err() == nil
					s.mu.Unlock()
					if stalled {
						s.note(ctx, context.DeadlineExceeded)
						cancel()
					}
				})
			case !expired:
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
	seed    maphash.Seed
	mu      sync.Mutex
	trouble map[Kind]error // why kinds cannot be read
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
		err, hint := w.trouble[k], ""
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
	kind    Kind
	digests map[cache.ObjectName]uint64 // of the objects that exist, as they were handed out
	listed  bool
	streams bool // set from the start of a list that is read as a stream until a list is complete
}

// setStreams sets streams and returns what it was. After a stream that broke, a list is read: the library would ask for
// another stream at once.
func (s *store) setStreams(streams bool) (was bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	was, s.streams = s.streams, streams
	return was
}

func (s *store) note(ctx context.Context, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		delete(s.trouble, s.kind)
	} else if ctx.Err() == nil {
		s.trouble[s.kind] = err
	}
}

// undefined returns an error if objects are known: deleting a definition deletes its objects first.
func (s *store) undefined() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.digests) > 0 {
		return fmt.Errorf("the definition of %s is gone, its %d objects were not deleted: what is installed stays",
			s.kind.Resource, len(s.digests))
	}
	return nil
}

func (s *store) remove(n cache.ObjectName) {
	delete(s.digests, n)
	s.On(Event{Kind: s.kind, Namespace: n.Namespace, Name: n.Name})
}

// Add hands out an object, unless what the agent reads of it is unchanged.
func (s *store) Add(object any) error {
	data, err := encode(object)
	if err != nil {
		return err
	}
	n, digest := nameOf(object), maphash.Bytes(s.seed, data)
	s.mu.Lock()
	defer s.mu.Unlock()
	if had, ok := s.digests[n]; !ok || had != digest {
		s.digests[n] = digest
		s.On(Event{s.kind, n.Namespace, n.Name, data})
	}
	return nil
}

// Transformer hands out an object of a list that is read as a stream, and leaves its name to the list.
func (s *store) Transformer() cache.TransformFunc {
	return func(object any) (any, error) {
		if _, ok := object.(*metav1.PartialObjectMetadata); ok {
			return object, nil
		}
		n := nameOf(object)
		name := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: n.Name}}
		return name, s.Add(object)
	}
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

// Replace hands out the objects of a list, and deletions of objects that the list lacks. It skips names of objects that
// [store.Transformer] has handed out.
func (s *store) Replace(list []any, _ string) error {
	listed := make(map[cache.ObjectName]bool, len(list))
	for _, object := range list {
		listed[nameOf(object)] = true
		if _, ok := object.(*metav1.PartialObjectMetadata); !ok {
			if err := s.Add(object); err != nil {
				return err
			}
		}
	}
	s.setStreams(false)
	s.note(context.Background(), nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	for n := range s.digests {
		if !listed[n] {
			s.remove(n)
		}
	}
	if !s.listed {
		s.listed = true
		s.Listed(s.kind)
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
