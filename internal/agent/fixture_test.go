// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"mustang/internal/agent/status"
	"mustang/internal/datapath"
	"mustang/internal/datapath/rows"
	"mustang/internal/kube"
	"mustang/internal/kube/kubetest"
	"mustang/internal/nodenet"
	"mustang/internal/service"
	"mustang/internal/service/health"
	"mustang/internal/testkit"
)

// newTable returns an empty table.
func newTable() *table { return &table{rows: map[service.Key]service.Service{}} }

func (t *table) set(change func()) {
	t.Lock()
	defer t.Unlock()
	change()
}

func ask(of http.Handler, path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	of.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w
}

// Attach notes the node's addresses.
func (t *table) Attach(_ context.Context, addresses []netip.Addr) error {
	t.Lock()
	defer t.Unlock()
	if t.absent && len(addresses) > 0 {
		return errors.Join(nil, errors.Join(&AbsentError{addresses}))
	}
	t.at = addresses
	return nil
}

// NodePorts has node ports at the node's addresses.
func (t *table) NodePorts(addresses []netip.Addr) ([]netip.Addr, error) { return addresses, nil }

// checks is a table as the answers to health checks.
type checks struct{ *table }

func (c checks) Apply(services []service.Service, name health.Name) error {
	c.Lock()
	defer c.Unlock()
	c.ports, c.names = nil, nil
	for _, s := range services {
		if s.HealthCheckPort == c.busy {
			return errors.Join(&health.PortError{Port: c.busy, Service: s.String(), Err: syscall.EADDRINUSE})
		}
		namespace, called := name(s)
		c.names = append(c.names, namespace+"/"+called)
		c.ports = append(c.ports, s.HealthCheckPort)
	}
	return nil
}

const (
	services       = "/api/v1/services"
	endpointSlices = "/apis/discovery.k8s.io/v1/endpointslices"
	nodes          = "/api/v1/nodes"
	podList        = "/api/v1/pods"

	networkPolicies = "/apis/networking.k8s.io/v1/networkpolicies"
)

const shopNamespace = `{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}`

func agentOver(t *testing.T, s *kubetest.Server, rows *table, change ...func(*Options)) *Agent {
	t.Helper()
	client := testkit.Must(kube.Connect(s.Kubeconfig(t)))(t)
	o := Options{
		Node: "here", Cluster: client, Services: rows, Policies: applied{rows}, Access: rows, Health: checks{rows},
		State: status.NewTracker(), Log: slog.New(slog.DiscardHandler),
	}
	for _, f := range change {
		f(&o)
	}
	return New(o)
}

// start runs an agent over a table until the test ends.
func start(t *testing.T, s *kubetest.Server, rows *table, change ...func(*Options)) *Agent {
	t.Helper()
	a := agentOver(t, s, rows, change...)
	startAgent(t, a)
	return a
}

func joining(n *network) func(*Options) {
	return func(o *Options) { o.Nodes, o.Attacher = n, n }
}

func logging(to *syncBuffer) func(*Options) {
	return func(o *Options) { o.Log = slog.New(slog.NewTextHandler(to, nil)) }
}

func startAgent(t *testing.T, a *Agent) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = a.Run(ctx)
	}()
	t.Cleanup(func() { cancel(); <-done })
}

func serviceAt(name, ip string, more string) string {
	return fmt.Sprintf(`{"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "shop", "name": %q},
"spec": {"clusterIP": %q, "ports": [{"port": 80}]%s}}`, name, ip, more)
}

func sliceOf(name, of string, zone string, ips ...string) string {
	var endpoints []string
	for _, ip := range ips {
		endpoints = append(endpoints, fmt.Sprintf(`{"addresses": [%q], "hints": {"forZones": [{"name": %q}]}}`, ip, zone))
	}
	return fmt.Sprintf(`{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
"metadata": {"namespace": "shop", "name": %q, "labels": {"kubernetes.io/service-name": %q}},
"ports": [{"port": 8080}], "endpoints": [%s]}`, name, of, strings.Join(endpoints, ", "))
}

func podAt(name, ip, created, phase string) string {
	return fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "shop", "name": %q, `+
		`"creationTimestamp": %q,
"labels": {"app": %q}}, "spec": {"nodeName": "here"}, "status": {"phase": %q, "podIP": %q}}`,
		name, created, name, phase, ip)
}

const denyAll = `{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"namespace": "shop", ` +
	`"name": "deny"},
"spec": {"podSelector": {}%s}}`

// newSet returns the Services of a node without a quota.
func newSet(node string) *serviceSet { return newServiceSet(node, rows.Counts{}, 1) }

func (s *serviceSet) services() []service.Service {
	all, _ := s.programmed()
	return all
}

func quiet() *warnings { return newWarnings(slog.New(slog.DiscardHandler), one) }

func one() int { return 1 }

// pods are the pods of a table.
type pods []string

func (p pods) List(context.Context) (all []datapath.Endpoint, err error) {
	for _, ip := range p {
		all = append(all, datapath.Endpoint{IP: netip.MustParseAddr(ip)})
	}
	return all, nil
}

// syncBuffer is a buffer for several goroutines.
type syncBuffer struct {
	sync.Mutex
	bytes.Buffer
}

func (b *syncBuffer) Write(data []byte) (int, error) {
	b.Lock()
	defer b.Unlock()
	return b.Buffer.Write(data)
}

func (b *syncBuffer) String() string {
	b.Lock()
	defer b.Unlock()
	return b.Buffer.String()
}

// network is a network of nodes without a kernel, and the attacher of its pods.
type network struct {
	sync.Mutex
	joined, attached string
	applied          int
	fails            bool
}

func (n *network) Apply(self nodenet.Node, others []nodenet.Node) error {
	n.Lock()
	defer n.Unlock()
	slices.SortFunc(others, func(a, b nodenet.Node) int { return cmp.Compare(a.Name, b.Name) })
	n.joined = named(self)
	var names []string
	for _, o := range others {
		names = append(names, named(o))
	}
	n.joined += " " + fmt.Sprint(names)
	n.applied++
	if n.fails {
		return errors.New("no")
	}
	return nil
}

func (n *network) MTU(nodenet.Node, []nodenet.Node) (int, error) { return 1450, nil }

func named(n nodenet.Node) string { return fmt.Sprintf("{%s %v %v}", n.Name, n.Addresses, n.Ranges) }

// Has has a network of its own, and an API server.
func (n *network) Has() (nodenet.Host, error) {
	return nodenet.Host{Local: []netip.Prefix{netip.MustParsePrefix("198.51.100.1/24")},
		Reserved: []netip.Addr{netip.MustParseAddr("203.0.113.5")}}, nil
}

// Inspect lacks a way to the second range of a node.
func (n *network) Inspect(_ nodenet.Node, others []nodenet.Node) (ways []nodenet.Way, refused []error, err error) {
	for _, o := range others {
		for i, r := range o.Ranges {
			w := nodenet.Way{Node: o.Name, Range: r, Via: "native via 192.0.2.2", There: i == 0}
			if !w.There {
				w.Lacks = "there is no route"
			}
			ways = append(ways, w)
		}
		refused = append(refused, &nodenet.NodeError{Node: o.Name, Text: "its address 127.0.0.1 is loopback"})
	}
	return ways, refused, nil
}

func (n *network) Watch(context.Context) (<-chan struct{}, error) { return nil, nil }

func (n *network) Attach(_ context.Context, ranges []netip.Prefix, mtu int) error {
	n.Lock()
	defer n.Unlock()
	n.attached = fmt.Sprint(ranges, " ", mtu)
	return nil
}

// wants waits until the network is joined, and pods can be attached, as given.
func (n *network) wants(t *testing.T, what, joined, attached string) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() error {
		n.Lock()
		defer n.Unlock()
		if n.joined != joined || n.attached != attached {
			return fmt.Errorf("%s: joined %q, attached %q, want %q, %q", what, n.joined, n.attached, joined, attached)
		}
		return nil
	})
}

func nodeAt(name, address, ranges, more string) string {
	return fmt.Sprintf(`{"apiVersion": "v1", "kind": "Node", "metadata": {"name": %q}, "spec": {%s},
"status": {"addresses": [{"type": "Hostname", "address": %q}, {"type": "InternalIP", "address": %q}]%s}}`,
		name, ranges, name, address, more)
}

// wantsEvents waits until the events have texts, each so often.
func wantsEvents(t *testing.T, s *kubetest.Server, want map[string]int) {
	t.Helper()
	testkit.Eventually(t, 30*time.Second, func() error {
		all := s.Objects("/api/v1/events")
		for text, n := range want {
			if strings.Count(all, text) != n {
				return fmt.Errorf("%s is not there %d times in %s", text, n, all)
			}
		}
		return nil
	})
}
