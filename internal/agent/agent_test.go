// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"mustang/internal/agent/status"
	"mustang/internal/kube"
	"mustang/internal/kube/kubetest"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

const (
	services       = "/api/v1/services"
	endpointSlices = "/apis/discovery.k8s.io/v1/endpointslices"
)

// agentOver returns an agent of the node "here" over a table, with some options changed.
func agentOver(t *testing.T, s *kubetest.Server, rows *table, change ...func(*Options)) *Agent {
	t.Helper()
	client, err := kube.Connect(s.Kubeconfig(t))
	if err != nil {
		t.Fatal(err)
	}
	o := Options{
		Node: "here", Source: client, Services: rows, Policies: applied{rows}, Access: rows, Health: checks{rows},
		State: status.NewTracker(), Events: client, Status: client, Log: slog.New(slog.DiscardHandler),
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

// joining has an agent join nodes.
func joining(n *network) func(*Options) {
	return func(o *Options) { o.Nodes, o.Attacher = n, n }
}

// logging has an agent write its log to a buffer.
func logging(to *syncBuffer) func(*Options) {
	return func(o *Options) { o.Log = slog.New(slog.NewTextHandler(to, nil)) }
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
	s.Put(t, nodes, nodeAt("here", "192.0.2.1", "", ""))
	s.Put(t, "/api/v1/namespaces", `{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}`)
	s.Put(t, "/api/v1/pods", podAt("web", "10.1.0.1", "2026-01-01T00:00:00Z", "Running"))
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
	rows := &table{rows: map[service.Key]service.Service{}}
	for _, gone := range []bool{false, true} {
		if gone {
			for _, name := range []string{"one", "two"} {
				_ = s.on(kube.Event{Kind: kube.Services, Namespace: "shop", Name: name})
			}
		}
		changes, _ := collect(s, quiet())
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
	s.Put(t, services, serviceAt("web", "10.96.0.1", ""))
	rows := &table{rows: map[service.Key]service.Service{}, fails: 100, removed: true}
	a := agentOver(t, s, rows)
	if err := a.Run(t.Context()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it ended with %v", err)
	}
}
