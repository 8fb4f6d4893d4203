// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"mustang/internal/agent/healthz"
	"mustang/internal/datapath"
	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/policies"
	"mustang/internal/kube"
	"mustang/internal/kube/kubetest"
	"mustang/internal/policy"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

const (
	services       = "/api/v1/services"
	endpointSlices = "/apis/discovery.k8s.io/v1/endpointslices"
)

// table is a table of services without a kernel.
type table struct {
	sync.Mutex
	rows    map[service.Key]service.Service
	fails   int // calls that fail
	puts    int
	calls   int         // of Change
	other   service.Key // another owner's
	room    int         // for peers of a namespace, 0: for any number
	refuses error       // of policies
	removed bool
	at      []netip.Addr // addresses of the node that is attached
	ports   []uint16     // that are answered
	names   []string     // of the Services there
	rowRoom int          // for services, 0: for any number
	busy    uint16       // a port that another process has
	absent  bool         // no device has the node's addresses
	kept    []policy.Policy
	rules
}

// rules are the policies of a table, by name, with the pods whose labels are known.
type rules struct{ policies, pods []string }

// applied is a table as the policies of a datapath.
type applied struct{ *table }

func (a applied) Apply(_ context.Context, _ service.Owner, want policies.Set) (policies.Result, error) {
	a.Lock()
	defer a.Unlock()
	if a.refuses != nil {
		return policies.Result{}, a.refuses
	}
	peers := 0
	for _, p := range want.Policies {
		for _, r := range p.Ingress {
			peers += len(r.Peers)
		}
	}
	if a.room > 0 && peers > a.room {
		return policies.Result{}, &policy.QuotaError{Over: []*policy.LimitError{{Namespace: "shop", What: "verdict rows", Number: 9114, Limit: 8192}}}
	}
	a.rules, a.kept = rules{}, want.Policies
	for _, p := range want.Policies {
		a.rules.policies = append(a.rules.policies, p.Namespace+"/"+p.Name)
	}
	for _, p := range want.Pods {
		a.rules.pods = append(a.rules.pods, fmt.Sprint(p.Name, " ", p.Labels, p.Addresses))
	}
	return policies.Result{}, nil
}

// List lists the policies that were applied.
func (applied) Others(context.Context, service.Owner) ([]policy.Policy, error) { return nil, nil }

func (a applied) List() (all []policies.Listed, err error) {
	a.Lock()
	defer a.Unlock()
	for _, p := range a.kept {
		all = append(all, policies.Listed{Policy: p, Owner: service.Agent, Pods: 1})
	}
	return all, nil
}

// Generation tells whether the table is there.
func (t *table) Generation() (uint32, error) {
	t.Lock()
	defer t.Unlock()
	if t.removed {
		return 0, os.ErrNotExist
	}
	return 1, nil
}

// call tells whether a call for some services fails.
func (t *table) call(keys ...service.Key) error {
	if t.fails > 0 {
		t.fails--
		return errors.New("no")
	}
	if t.other != (service.Key{}) && slices.Contains(keys, t.other) {
		return &datapath.ConflictError{What: "another owner's"}
	}
	return nil
}

func (t *table) List(context.Context) (all []service.Service, err error) {
	t.Lock()
	defer t.Unlock()
	for _, s := range t.rows {
		all = append(all, s)
	}
	return all, nil
}

func (t *table) Apply(_ context.Context, owner service.Owner, want []service.Service) (datapath.Result, error) {
	t.Lock()
	defer t.Unlock()
	rows := map[service.Key]service.Service{}
	for _, s := range want {
		s.Owner = owner
		rows[s.Key()] = s
	}
	err := t.call(slices.Collect(maps.Keys(rows))...)
	if err == nil && t.rowRoom > 0 && len(rows) > t.rowRoom {
		err = &objects.FullError{Map: "services"}
	}
	if err == nil {
		t.rows = rows
	}
	return datapath.Result{}, err
}

func (t *table) Change(_ context.Context, owner service.Owner, put []service.Service, remove []service.Key) (datapath.Result, error) {
	t.Lock()
	defer t.Unlock()
	t.puts += len(put)
	t.calls++
	keys := slices.Clone(remove)
	for _, s := range put {
		keys = append(keys, s.Key())
	}
	if err := t.call(keys...); err != nil {
		return datapath.Result{}, err
	}
	for _, key := range remove {
		delete(t.rows, key)
	}
	for _, s := range put {
		if _, has := t.rows[s.Key()]; !has && t.rowRoom > 0 && len(t.rows) >= t.rowRoom {
			return datapath.Result{}, &objects.FullError{Map: "services"}
		}
		s.Owner = owner
		t.rows[s.Key()] = s
	}
	return datapath.Result{}, nil
}

// String lists the rows: "10.96.0.1:80/tcp [10.1.0.1:8080]".
func (t *table) String() string {
	t.Lock()
	defer t.Unlock()
	var lines []string
	for key, s := range t.rows {
		lines = append(lines, fmt.Sprint(key, " ", s.Backends))
	}
	slices.Sort(lines)
	return strings.Join(lines, "; ")
}

func (t *table) wants(test *testing.T, what, want string) {
	test.Helper()
	testkit.Eventually(test, 30*time.Second, func() error {
		if have := t.String(); have != want {
			return fmt.Errorf("%s: there is %q, want %q", what, have, want)
		}
		return nil
	})
}

// start runs an agent over a table until the test ends.
func start(t *testing.T, s *kubetest.Server, rows *table) {
	t.Helper()
	client, err := kube.Connect(s.Kubeconfig(t))
	if err != nil {
		t.Fatal(err)
	}
	startAgent(t, New(Options{Node: "here", Source: client, Services: rows, Policies: applied{rows}, Access: rows, Health: checks{rows}, State: healthz.New(), Events: client, Log: slog.New(slog.NewTextHandler(io.Discard, nil))}))
}

// startAgent runs an agent until the test ends.
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

// TestAgent follows Services and their slices through changes, and calls that fail.
func TestAgent(t *testing.T) {
	s := kubetest.Start(t)
	rows := &table{rows: map[service.Key]service.Service{{}: {Owner: service.Agent}}, fails: 1}
	s.Put(t, services, serviceAt("web", "10.96.0.1", ""))
	s.Put(t, endpointSlices, sliceOf("web-1", "web", "a", "10.1.0.1"))
	start(t, s, rows)
	rows.wants(t, "first list", "10.96.0.1:80/tcp [10.1.0.1:8080]")
	s.Put(t, endpointSlices, sliceOf("web-2", "web", "a", "10.1.0.2"))
	rows.wants(t, "another slice", "10.96.0.1:80/tcp [10.1.0.1:8080 10.1.0.2:8080]")
	rows.Lock()
	rows.fails = 1
	rows.Unlock()
	s.Delete(endpointSlices, "shop", "web-1")
	rows.wants(t, "a slice is gone", "10.96.0.1:80/tcp [10.1.0.2:8080]")
	s.Put(t, services, serviceAt("web", "10.96.0.2", ""))
	rows.wants(t, "another address", "10.96.0.2:80/tcp [10.1.0.2:8080]")
	s.Put(t, endpointSlices, sliceOf("web-2", "other", "a", "10.1.0.2"))
	rows.wants(t, "a slice of another Service", "10.96.0.2:80/tcp []")
	s.Delete(services, "shop", "web")
	rows.wants(t, "no Service", "")
}

// TestZone heeds hints once the node is in a zone.
func TestZone(t *testing.T) {
	s := kubetest.Start(t)
	rows := &table{rows: map[service.Key]service.Service{}}
	s.Put(t, services, serviceAt("web", "10.96.0.1", ""))
	s.Put(t, endpointSlices, sliceOf("web-1", "web", "a", "10.1.0.1"))
	s.Put(t, endpointSlices, sliceOf("web-2", "web", "b", "10.1.0.2"))
	start(t, s, rows)
	rows.wants(t, "no zone", "10.96.0.1:80/tcp [10.1.0.1:8080 10.1.0.2:8080]")
	s.Put(t, "/api/v1/nodes", `{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "here", "labels": {"topology.kubernetes.io/zone": "b"}}}`)
	rows.wants(t, "zone b", "10.96.0.1:80/tcp [10.1.0.2:8080]")
}

// TestConflict has two Services with one external address: the second has it once the first is gone.
func TestConflict(t *testing.T) {
	s := kubetest.Start(t)
	rows := &table{rows: map[service.Key]service.Service{}}
	start(t, s, rows)
	external := `, "externalIPs": ["192.0.2.1"]`
	s.Put(t, services, serviceAt("one", "10.96.0.1", external))
	s.Put(t, endpointSlices, sliceOf("one", "one", "a", "10.1.0.1"))
	rows.wants(t, "one", "10.96.0.1:80/tcp [10.1.0.1:8080]; 192.0.2.1:80/tcp [10.1.0.1:8080]")
	s.Put(t, services, serviceAt("two", "10.96.0.2", external))
	s.Put(t, endpointSlices, sliceOf("two", "two", "a", "10.1.0.2"))
	rows.wants(t, "both", "10.96.0.1:80/tcp [10.1.0.1:8080]; 10.96.0.2:80/tcp [10.1.0.2:8080]; 192.0.2.1:80/tcp [10.1.0.1:8080]")
	testkit.Eventually(t, 30*time.Second, func() error {
		if all := s.Objects(t, "/api/v1/events"); !strings.Contains(all, `"message":"shop/one already has 192.0.2.1:80"`) ||
			!strings.Contains(all, `"name":"two","namespace":"shop"`) || strings.Count(all, `"involvedObject"`) != 1 {
			return fmt.Errorf("there are the events %s", all)
		}
		return nil
	})
	s.Delete(services, "shop", "one")
	rows.wants(t, "two", "10.96.0.2:80/tcp [10.1.0.2:8080]; 192.0.2.1:80/tcp [10.1.0.2:8080]")
}

// TestUnchanged writes no service that has not changed.
func TestUnchanged(t *testing.T) {
	s := kubetest.Start(t)
	rows := &table{rows: map[service.Key]service.Service{}}
	s.Put(t, services, serviceAt("web", "10.96.0.1", ""))
	start(t, s, rows)
	rows.wants(t, "first list", "10.96.0.1:80/tcp []")
	s.Put(t, services, serviceAt("web", "10.96.0.1", `, "type": "ClusterIP"`))
	s.Forget()
	s.Put(t, services, serviceAt("web-2", "10.96.0.2", ""))
	rows.wants(t, "after a new list", "10.96.0.1:80/tcp []; 10.96.0.2:80/tcp []")
	if rows.puts != 1 {
		t.Errorf("%d services were written, want 1", rows.puts)
	}
}

func podAt(name, ip, created, phase string) string {
	return fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "shop", "name": %q, "creationTimestamp": %q,
"labels": {"app": %q}}, "spec": {"nodeName": "here"}, "status": {"phase": %q, "podIP": %q}}`, name, created, name, phase, ip)
}

const denyAll = `{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"namespace": "shop", "name": "deny"},
"spec": {"podSelector": {}%s}}`

// wantsRules waits until the policies and the pods that they know are these.
func (t *table) wantsRules(test *testing.T, what string, want rules) {
	test.Helper()
	testkit.Eventually(test, 30*time.Second, func() error {
		t.Lock()
		defer t.Unlock()
		if fmt.Sprint(t.rules) != fmt.Sprint(want) {
			return fmt.Errorf("%s: there is %v, want %v", what, t.rules, want)
		}
		return nil
	})
}

// TestPolicies follows policies and pods: an address is its youngest pod's, and a policy that cannot be read is there too.
func TestPolicies(t *testing.T) {
	s := kubetest.Start(t)
	rows := &table{rows: map[service.Key]service.Service{}}
	const pods, networkPolicies = "/api/v1/pods", "/apis/networking.k8s.io/v1/networkpolicies"
	s.Put(t, pods, podAt("old", "10.1.0.1", "2026-01-01T00:00:00Z", "Running"))
	start(t, s, rows)
	s.Put(t, networkPolicies, fmt.Sprintf(denyAll, ""))
	rows.wantsRules(t, "a policy", rules{[]string{"shop/deny"}, []string{"old map[app:old] [10.1.0.1]"}})
	s.Put(t, pods, podAt("new", "10.1.0.1", "2026-01-02T00:00:00Z", "Running"))
	both := []string{"new map[app:new] [10.1.0.1]", "old map[app:old] []"}
	rows.wantsRules(t, "two pods at an address", rules{[]string{"shop/deny"}, both})
	s.Put(t, networkPolicies, fmt.Sprintf(denyAll, `, "later": {}`))
	s.Put(t, pods, podAt("old", "10.1.0.1", "2026-01-01T00:00:00Z", "Succeeded"))
	rows.wantsRules(t, "a policy that cannot be read", rules{[]string{"shop/deny"}, both[:1]})
	s.Delete(networkPolicies, "shop", "deny")
	rows.wantsRules(t, "no policy", rules{})
}

// TestFull has a tenant with more rules than there is room for: the policies of others are in force, and its own without rules.
func TestFull(t *testing.T) {
	s := kubetest.Start(t)
	rows := &table{rows: map[service.Key]service.Service{}, room: 2}
	start(t, s, rows)
	const networkPolicies = "/apis/networking.k8s.io/v1/networkpolicies"
	big := `, "ingress": [{"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}, {"ipBlock": {"cidr": "11.0.0.0/8"}}, {"ipBlock": {"cidr": "12.0.0.0/8"}}]}]`
	s.Put(t, networkPolicies, fmt.Sprintf(denyAll, big))
	s.Put(t, networkPolicies, strings.Replace(fmt.Sprintf(denyAll, ""), "deny", "other", 1))
	rows.wantsRules(t, "two policies", rules{policies: []string{"shop/deny", "shop/other"}})
}

// TestGoneTogether deletes two Services that want one address at once: nobody has it then.
func TestGoneTogether(t *testing.T) {
	s := newServiceSet("here")
	external := `, "externalIPs": ["192.0.2.1"]`
	for i, name := range []string{"one", "two"} {
		if err := s.on(kube.Event{Kind: kube.Services, Namespace: "shop", Name: name, Object: []byte(serviceAt(name, fmt.Sprint("10.96.0.", i+1), external))}); err != nil {
			t.Fatal(err)
		}
	}
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	rows := &table{rows: map[service.Key]service.Service{}}
	for _, gone := range []bool{false, true} {
		if gone {
			for _, name := range []string{"one", "two"} {
				_ = s.on(kube.Event{Kind: kube.Services, Namespace: "shop", Name: name})
			}
		}
		changes, _, _ := collect(s, newWarnings(log))
		if failed := changes.write(t.Context(), rows, s.wanted); len(failed) > 0 {
			t.Fatal(failed)
		}
		if want := map[bool]int{false: 3, true: 0}[gone]; len(rows.rows) != want {
			t.Errorf("there are %s, want %d", rows, want)
		}
	}
}

// TestRemoved ends with an error when the datapath is removed: it would write to maps that nothing reads.
func TestRemoved(t *testing.T) {
	s := kubetest.Start(t)
	client, err := kube.Connect(s.Kubeconfig(t))
	if err != nil {
		t.Fatal(err)
	}
	s.Put(t, services, serviceAt("web", "10.96.0.1", ""))
	rows := &table{rows: map[service.Key]service.Service{}, fails: 100, removed: true}
	a := New(Options{Node: "here", Source: client, Services: rows, Policies: applied{rows}, Access: rows, Health: checks{rows}, State: healthz.New(), Events: client, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err := a.Run(t.Context()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it ended with %v", err)
	}
}
