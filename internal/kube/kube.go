// SPDX-License-Identifier: Apache-2.0

// Package kube watches the objects of a Kubernetes API server.
package kube

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"mustang/internal/document"
)

// Requests to the API server, per second and at once.
const (
	rate  = 50
	burst = 100
)

// answerWithin bounds the wait for the head of an answer: more than the API server's limit (60 s) and some proxies'.
const answerWithin = 90 * time.Second

// readWithin bounds a list, and watchBeyond the time that a watch stays open after its time-out.
const (
	readWithin  = 5 * time.Minute
	watchBeyond = 30 * time.Second
)

// Kind is a kind of objects, with selectors.
type Kind struct {
	Group, Version, Resource string
	Labels                   string // select objects, as in `kubectl get -l`
	Fields                   string // select objects, as in `kubectl get --field-selector`
	// Former is the version if the cluster does not serve Version, of a kind with a CustomResourceDefinition.
	Former string
}

func (k Kind) resource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: k.Group, Version: k.Version, Resource: k.Resource}
}

// Event is an object that exists, has changed, or is gone.
type Event struct {
	Kind            Kind
	Namespace, Name string
	Object          jsontext.Value // nil: it is gone
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

// PodsOn selects the pods of a node.
func PodsOn(node string) Kind {
	of := Pods
	of.Fields = "spec.nodeName=" + fields.EscapeValue(node)
	return of
}

// PodsElsewhere selects the pods of other nodes that have an address and have not ended.
func PodsElsewhere(node string) Kind {
	of := Pods
	of.Fields = "spec.nodeName!=" + fields.EscapeValue(node) +
		",status.podIP!=,status.phase!=Succeeded,status.phase!=Failed"
	return of
}

// Annotations that are read.
const (
	mirror    = "kubernetes.io/config.mirror"
	triggered = "endpoints.kubernetes.io/last-change-trigger-time"
)

// KeyAnnotation is the annotation of a Node with the public key of its WireGuard device, which its agent writes.
const KeyAnnotation = "mustang/wireguard-key"

// Meta is the metadata of an object, without names and labels.
type Meta struct {
	// Created is when it was created, in RFC 3339, and UID is the cluster's.
	Created, UID string
	Mirrors      string // the kubelet's UID of the static Pod that this object mirrors; empty: not a mirror
	// Triggered is the time of the change of a pod or the Service that an EndpointSlice last reported; zero: unknown.
	Triggered time.Time
}

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
	at, _ := time.Parse(time.RFC3339Nano, m.Annotations[triggered])
	return Meta{m.Created, m.UID, m.Annotations[mirror], at}, err
}

// Client is a client of an API server. Any goroutine may call its methods.
type Client struct {
	dynamic dynamic.Interface
	rest    rest.Interface
	typed   rest.Interface // for the kinds in binary, in Protocol Buffers
	config  *rest.Config
	host    string // "https://192.0.2.1:6443"
	// readWithin, watchBeyond and leaseFor equal the constants, except in tests.
	readWithin, watchBeyond, leaseFor time.Duration

	mu      sync.Mutex
	reached map[netip.Addr]bool
}

// Connect returns a client for the cluster of a kubeconfig file; empty: of this process's pod. It sends no request.
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
	c := &Client{config: config, readWithin: readWithin, watchBeyond: watchBeyond, leaseFor: leaseFor,
		reached: map[netip.Addr]bool{}}
	config.Dial = c.dial
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
		c.reached[literal.Unmap()] = true
	}
	c.dynamic, c.rest, c.host = dynamic.New(plain), plain, at.Scheme+"://"+at.Host
	coded := rest.CopyConfig(config)
	coded.ContentType, coded.NegotiatedSerializer = runtime.ContentTypeProtobuf, codecs.WithoutConversion()
	coded.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	if c.typed, err = rest.UnversionedRESTClientFor(coded); err != nil {
		return nil, fmt.Errorf("connect to Kubernetes: %w", err)
	}
	return c, nil
}

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

const maxConfig = 64 << 20

// CheckFile returns a readable error if a file is not a kubeconfig. The library would block on a pipe.
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
	_, err = clientcmd.LoadFromFile(kubeconfig)
	if err == nil || errors.As(err, new(*fs.PathError)) {
		return err
	}
	where := ""
	if _, line, ok := strings.Cut(err.Error(), "yaml: line "); ok {
		where = ": line " + line
	}
	return fmt.Errorf("%s is not a kubeconfig%s", kubeconfig, where)
}

// LogTo sends the log of the Kubernetes library to log, except for what Watch reports.
func LogTo(log *slog.Logger) { klog.SetSlogLogger(log) }

// dial notes the addresses that connections go to: the addresses of an API server with a name can change.
func (c *Client) dial(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second} // as client-go
	conn, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if to, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.reached[to.AddrPort().Addr().Unmap()] = true
	}
	return conn, nil
}

// Addresses returns the address of the API server or, if it has a name, the addresses that the client has reached.
func (c *Client) Addresses() []netip.Addr {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.SortedFunc(maps.Keys(c.reached), netip.Addr.Compare)
}
