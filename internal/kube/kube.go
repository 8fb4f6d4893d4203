// SPDX-License-Identifier: Apache-2.0

// Package kube watches the objects of a Kubernetes API server, hands them out as JSON, and stores only their names.
package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"mustang/internal/document"
)

// Requests to the API server, per second and at once.
const (
	rate  = 50
	burst = 100
)

// answerWithin is how long a request waits for the head of its answer. It is longer than the API server's limit (60 s),
// and than the time between bookmarks of a quiet watch (a minute), for which some proxies wait.
const answerWithin = 90 * time.Second

// readWithin bounds a list, and watchBeyond the time that a watch stays open after its time-out: a proxy may send the
// head of an answer and nothing more.
const (
	readWithin  = 5 * time.Minute
	watchBeyond = 30 * time.Second
)

// Kind is a kind of objects, with a selector.
type Kind struct {
	Group, Version, Resource string
	// Labels select objects, as in `kubectl get -l`.
	Labels string
	// Former is the version to read if the cluster does not serve Version. A kind with Former has a
	// CustomResourceDefinition, or else no objects.
	Former string
}

func (k Kind) resource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: k.Group, Version: k.Version, Resource: k.Resource}
}

// proxied selects the Services that a proxy of a node serves, and their EndpointSlices, as kube-proxy does.
const proxied = "!service.kubernetes.io/service-proxy-name,!service.kubernetes.io/headless"

// The kinds that a node's agent watches.
var (
	Nodes                  = Kind{Version: "v1", Resource: "nodes"}
	Namespaces             = Kind{Version: "v1", Resource: "namespaces"}
	Pods                   = Kind{Version: "v1", Resource: "pods"}
	NetworkPolicies        = Kind{Group: "networking.k8s.io", Version: "v1", Resource: "networkpolicies"}
	ClusterNetworkPolicies = Kind{Group: "policy.networking.k8s.io", Version: "v1beta1",
		Resource: "clusternetworkpolicies", Former: "v1alpha2"}
	Services       = Kind{Version: "v1", Resource: "services", Labels: proxied}
	EndpointSlices = Kind{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices", Labels: proxied}
)

// Meta is the metadata of an object, without names and labels.
type Meta struct {
	// Created is when it was created, in RFC 3339, and UID is the cluster's.
	Created, UID string
	// Mirrors is the kubelet's UID of the static Pod that this object mirrors; empty: not a mirror.
	Mirrors string
	// Triggered is the time of the change of a pod or the Service that an EndpointSlice last reported; zero: unknown.
	Triggered time.Time
}

// Annotations of Kubernetes.
const (
	mirror    = "kubernetes.io/config.mirror"
	triggered = "endpoints.kubernetes.io/last-change-trigger-time"
)

// MetaOf reads the metadata of an object.
func MetaOf(object jsontext.Value) (Meta, error) {
	var o struct {
		Metadata struct {
			Created     string            `json:"creationTimestamp"`
			UID         string            `json:"uid"`
			Annotations map[string]string `json:"annotations"`
		} `json:"metadata"`
	}
	err := document.Decode(object, &o)
	m := o.Metadata
	at, _ := time.Parse(time.RFC3339Nano, m.Annotations[triggered]) // zero if it is none
	return Meta{m.Created, m.UID, m.Annotations[mirror], at}, err
}

// Event is an object that exists, has changed, or is gone.
type Event struct {
	Kind            Kind
	Namespace, Name string
	Object          jsontext.Value // nil: it is gone
}

// Client is a client of an API server. Any goroutine may call its methods.
type Client struct {
	dynamic dynamic.Interface
	rest    rest.Interface
	config  *rest.Config
	host    string // "https://192.0.2.1:6443"
	*dialed
	// readWithin and watchBeyond equal the constants, except in tests.
	readWithin, watchBeyond time.Duration
}

// Connect returns a client for the cluster of a kubeconfig file or, if the path is empty, of this process's pod. It
// sends no request.
func Connect(kubeconfig string) (*Client, error) {
	config, err := inCluster()
	if kubeconfig != "" {
		if err := CheckFile(kubeconfig); err != nil {
			return nil, err
		}
		config, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
	}
	if err != nil {
		return nil, fmt.Errorf("connect to Kubernetes: %w", err)
	}
	to := &dialed{addrs: map[netip.Addr]bool{}}
	config.Dial = to.dial
	config.QPS, config.Burst, config.UserAgent = rate, burst, "mustang-agent"
	config.Wrap(func(to http.RoundTripper) http.RoundTripper {
		if t, ok := to.(*http.Transport); ok {
			t.ResponseHeaderTimeout = answerWithin
		}
		return to
	})
	plain, err := rest.UnversionedRESTClientFor(dynamic.ConfigFor(config))
	if err != nil {
		return nil, fmt.Errorf("connect to Kubernetes: %w", err)
	}
	at := plain.Get().URL()
	if literal, err := netip.ParseAddr(at.Hostname()); err == nil {
		to.addrs[literal.Unmap()] = true
	}
	return &Client{dynamic.New(plain), plain, config, at.Scheme + "://" + at.Host, to, readWithin, watchBeyond}, nil
}

// inCluster returns the configuration of a pod.
func inCluster() (*rest.Config, error) {
	const variable = "KUBERNETES_SERVICE_HOST"
	switch host := os.Getenv(variable); {
	case host == "" || host == "API_SERVER":
		return nil, fmt.Errorf(
			"the address of the API server is missing: apiServer.host of the chart, API_SERVER in deploy/mustang.yaml "+
				"(%s=%s), or --kubeconfig", variable, host)
	case strings.Contains(host, "/"):
		return nil, fmt.Errorf("%s=%s: want an address or a name, without https:// and port", variable, host)
	}
	return rest.InClusterConfig()
}

// maxConfig is the largest size in bytes of a kubeconfig file.
const maxConfig = 64 << 20

// CheckFile returns a readable error if a file is not a kubeconfig: the library's error is about Go types. The library
// also reads without a limit, and blocks on a pipe.
func CheckFile(kubeconfig string) error {
	info, err := os.Stat(kubeconfig)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("--kubeconfig %s: no such file", kubeconfig)
	case err != nil:
		return fmt.Errorf("--kubeconfig: %w", err)
	case !info.Mode().IsRegular():
		return fmt.Errorf("--kubeconfig %s: want a regular file", kubeconfig)
	case info.Size() > maxConfig:
		return fmt.Errorf("--kubeconfig %s: more than %d MiB", kubeconfig, maxConfig>>20)
	}
	data, err := os.ReadFile(kubeconfig)
	if err != nil {
		return fmt.Errorf("--kubeconfig: %w", err)
	}
	if _, err := clientcmd.Load(data); err != nil {
		where := ""
		if _, line, ok := strings.Cut(err.Error(), "yaml: line "); ok {
			where = ": line " + line
		}
		return fmt.Errorf("%s is not a kubeconfig%s", kubeconfig, where)
	}
	return nil
}

// LogTo sends the log of the Kubernetes library to log, except for what Watch reports.
func LogTo(log *slog.Logger) { klog.SetSlogLogger(log) }

// Calls are the callbacks of a watch. It calls none after its end.
type Calls struct {
	// On is called for each object, and again whenever one changes or goes, one call at a time.
	On func(Event)
	// Synced is called once, after On has had all objects that existed at the start.
	Synced func()
	// Installed returns how many objects of a kind the caller has in force from before; nil: none. If there are some, an
	// empty first list is not accepted for a minute.
	Installed func(Kind) int
	// Failing is called with the reason, in one line, why kinds cannot be read, and with nil once all can be read again.
	Failing func(error)
}

// Watch calls back for the objects of the kinds until the context ends. While the API server cannot be reached, it
// retries at most once in 30 seconds, and objects stay unchanged.
func (c *Client) Watch(ctx context.Context, kinds []Kind, calls Calls) {
	w := &watcher{Calls: calls, missing: len(kinds)}
	t := &trouble{host: c.host, kinds: kinds, of: map[string]error{}}
	ctx = klog.NewContext(ctx, klog.Logger{}) // it would say the same of each kind, again and again
	var all sync.WaitGroup
	all.Go(func() { t.report(ctx, calls.Failing) })
	for _, kind := range kinds {
		all.Go(func() {
			s := &store{watcher: w, kind: kind, names: map[name]bool{}}
			r := cache.NewReflectorWithOptions(c.list(s, t), &unstructured.Unstructured{}, s,
				cache.ReflectorOptions{Name: kind.Resource})
			r.RunWithContext(ctx)
		})
	}
	all.Wait()
}

// list returns the ListWatch of a kind. It hands out the items of a list while it reads it, and returns their names.
func (c *Client) list(s *store, t *trouble) *cache.ListWatch {
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
			if at, err = c.served(bounded, s.kind); err == nil {
				names, err = c.stream(bounded, at, with(o), s.put)
			}
			if undefined := errors.Is(err, errUndefined); undefined || err == nil && o.Continue == "" && len(names.Items) == 0 {
				err = s.doubt(undefined)
			} else if err != nil {
				s.failed()
			}
			t.note(ctx, s.kind, err)
			return names, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			if o.SendInitialEvents != nil {
				return nil, errNoWatchList
			}
			if at.Version == "" {
				return nil, errUndefined // the next list asks again, in a minute at most
			}
			bounded, cancel := context.WithTimeout(ctx, time.Duration(*o.TimeoutSeconds)*time.Second+c.watchBeyond)
			w, err := c.dynamic.Resource(at.resource()).Watch(bounded, with(o))
			// a list follows, and reports the error
			if !apierrors.IsNotFound(err) && !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
				t.note(ctx, s.kind, err)
			}
			if err != nil {
				cancel()
				return nil, err
			}
			return &boundedWatch{w, cancel}, nil
		},
	}
}

// errNoWatchList makes a reflector use a list where it would get the list's objects from a watch, the default of later
// library versions: these would not be handed out, and all objects would count as gone.
var errNoWatchList = errors.New("lists are read as such")

// watcher is one call of Watch.
type watcher struct {
	Calls
	mu      sync.Mutex
	missing int // kinds without a first list
}

// store is the store of a reflector: it hands out objects, and stores only their names.
type store struct {
	*watcher
	kind   Kind
	names  map[name]bool
	listed bool
	empty  time.Time // since when lists have been empty though objects are known
}

type name struct{ namespace, name string }

// put hands out an object of a list or of a watch.
func (s *store) put(e Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.names[name{e.Namespace, e.Name}] = true
	e.Kind = s.kind
	s.On(e)
}

// remove hands out the deletion of an object. The caller has the lock.
func (s *store) remove(n name) {
	delete(s.names, n)
	s.On(Event{Kind: s.kind, Namespace: n.namespace, Name: n.name})
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

func nameOf(object any) name {
	o := object.(metav1.Object)
	return name{o.GetNamespace(), o.GetName()}
}

// Replace hands out deletions of objects that a list lacks; put has handed out the objects in the list.
func (s *store) Replace(list []any, _ string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	had := s.names
	s.empty = time.Time{}
	s.names = make(map[name]bool, len(list))
	for _, object := range list {
		s.names[nameOf(object)] = true
	}
	for n := range had {
		if !s.names[n] {
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
