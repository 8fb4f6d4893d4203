// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"mustang/internal/kube"
	"mustang/internal/kube/kubetest"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// TestAgent follows Services and their slices through changes, and calls that fail.
func TestAgent(t *testing.T) {
	s := kubetest.Start(t)
	rows := &table{rows: map[service.Key]service.Service{{}: {Owner: service.Agent}}, fails: 1}
	s.Put(t, services, serviceAt("web", "10.96.0.1", ""))
	s.Put(t, endpointSlices, sliceOf("web-1", "web", "a", "10.1.0.1"))
	s.Put(t, nodes, nodeAt("here", "192.0.2.1", "", ""))
	s.Put(t, "/api/v1/namespaces", shopNamespace)
	s.Put(t, podList, podAt("web", "10.1.0.1", "2026-01-01T00:00:00Z", "Running"))
	start(t, s, rows)
	rows.wants(t, "first list", "10.96.0.1:80/tcp [10.1.0.1:8080]")
	s.Put(t, endpointSlices, sliceOf("web-2", "web", "a", "10.1.0.2"))
	rows.wants(t, "another slice", "10.96.0.1:80/tcp [10.1.0.1:8080 10.1.0.2:8080]")
	rows.set(func() { rows.fails = 1 })
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
	s, rows := kubetest.Start(t), newTable()
	s.Put(t, services, serviceAt("web", "10.96.0.1", ""))
	s.Put(t, endpointSlices, sliceOf("web-1", "web", "a", "10.1.0.1"))
	s.Put(t, endpointSlices, sliceOf("web-2", "web", "b", "10.1.0.2"))
	start(t, s, rows)
	rows.wants(t, "no zone", "10.96.0.1:80/tcp [10.1.0.1:8080 10.1.0.2:8080]")
	s.Put(t, nodes,
		`{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "here", "labels": {"topology.kubernetes.io/zone": "b"}}}`)
	rows.wants(t, "zone b", "10.96.0.1:80/tcp [10.1.0.2:8080]")
}

// TestConflict has two Services with one external address: the second has it once the first is gone.
func TestConflict(t *testing.T) {
	s, rows := kubetest.Start(t), newTable()
	start(t, s, rows)
	external := `, "externalIPs": ["192.0.2.1"]`
	s.Put(t, services, serviceAt("one", "10.96.0.1", external))
	s.Put(t, endpointSlices, sliceOf("one", "one", "a", "10.1.0.1"))
	rows.wants(t, "one", "10.96.0.1:80/tcp [10.1.0.1:8080]; 192.0.2.1:80/tcp [10.1.0.1:8080]")
	s.Put(t, services, serviceAt("two", "10.96.0.2", external))
	s.Put(t, endpointSlices, sliceOf("two", "two", "a", "10.1.0.2"))
	rows.wants(t, "both",
		"10.96.0.1:80/tcp [10.1.0.1:8080]; 10.96.0.2:80/tcp [10.1.0.2:8080]; 192.0.2.1:80/tcp [10.1.0.1:8080]")
	wantsEvents(t, s, map[string]int{`"message":"shop/one already has 192.0.2.1:80"`: 1,
		`"name":"two","namespace":"shop"`: 1, `"involvedObject"`: 1})
	s.Delete(services, "shop", "one")
	rows.wants(t, "two", "10.96.0.2:80/tcp [10.1.0.2:8080]; 192.0.2.1:80/tcp [10.1.0.2:8080]")
}

// TestUnchanged writes no service that has not changed.
func TestUnchanged(t *testing.T) {
	s, rows := kubetest.Start(t), newTable()
	s.Put(t, services, serviceAt("web", "10.96.0.1", ""))
	start(t, s, rows)
	rows.wants(t, "first list", "10.96.0.1:80/tcp []")
	s.Put(t, services, serviceAt("web", "10.96.0.1", `, "type": "ClusterIP"`))
	s.Forget()
	s.Put(t, services, serviceAt("web-2", "10.96.0.2", ""))
	rows.wants(t, "after a new list", "10.96.0.1:80/tcp []; 10.96.0.2:80/tcp []")
	testkit.Check(t, rows.puts == 1, "%d services were written, want 1", rows.puts)
}

// TestPolicies follows policies and pods: an address is its youngest pod's, and a policy that cannot be read is there
// too.
func TestPolicies(t *testing.T) {
	s, rows := kubetest.Start(t), newTable()
	s.Put(t, podList, podAt("old", "10.1.0.1", "2026-01-01T00:00:00Z", "Running"))
	start(t, s, rows)
	s.Put(t, networkPolicies, fmt.Sprintf(denyAll, ""))
	rows.wantsRules(t, "a policy", rules{[]string{"shop/deny"}, []string{"old map[app:old] [10.1.0.1]"}})
	s.Put(t, podList, podAt("new", "10.1.0.1", "2026-01-02T00:00:00Z", "Running"))
	both := []string{"new map[app:new] [10.1.0.1]", "old map[app:old] []"}
	rows.wantsRules(t, "two pods at an address", rules{[]string{"shop/deny"}, both})
	s.Put(t, networkPolicies, fmt.Sprintf(denyAll, `, "later": {}`))
	s.Put(t, podList, podAt("old", "10.1.0.1", "2026-01-01T00:00:00Z", "Succeeded"))
	rows.wantsRules(t, "a policy that cannot be read", rules{[]string{"shop/deny"}, both[:1]})
	s.Delete(networkPolicies, "shop", "deny")
	rows.wantsRules(t, "no policy", rules{})
}

// TestGoneTogether deletes two Services with one address at once: the address is removed.
func TestGoneTogether(t *testing.T) {
	s := newSet("here")
	external := `, "externalIPs": ["192.0.2.1"]`
	for i, name := range []string{"one", "two"} {
		testkit.Succeed(t, s.on(kube.Event{Kind: kube.Services, Namespace: "shop", Name: name,
			Object: []byte(serviceAt(name, fmt.Sprint("10.96.0.", i+1), external))}))
	}
	rows := newTable()
	for _, gone := range []bool{false, true} {
		if gone {
			for _, name := range []string{"one", "two"} {
				_ = s.on(kube.Event{Kind: kube.Services, Namespace: "shop", Name: name})
			}
		}
		changes, _ := collect(s, quiet())
		failed := s.write(t.Context(), rows, changes)
		testkit.Require(t, len(failed) == 0, "%v", failed)
		want := map[bool]int{false: 3, true: 0}[gone]
		testkit.Check(t, len(rows.rows) == want, "there are %s, want %d", rows, want)
	}
}

// TestRemoved ends with an error when the datapath is removed: it would write to maps that nothing reads.
func TestRemoved(t *testing.T) {
	s := kubetest.Start(t)
	s.Put(t, services, serviceAt("web", "10.96.0.1", ""))
	rows := &table{rows: map[service.Key]service.Service{}, fails: 100, removed: true}
	a := agentOver(t, s, rows)
	err := a.Run(t.Context())
	testkit.Check(t, errors.Is(err, os.ErrNotExist), "it ended with %v", err)
}

// TestOtherOwner has a Service whose address another owner has: the others are served, the agent is ready, and the
// Service is served once the address is free.
func TestOtherOwner(t *testing.T) {
	s, rows := kubetest.Start(t), newTable()
	rows.other = service.Key{Frontend: netip.MustParseAddrPort("10.96.0.1:80"), Protocol: service.TCP}
	s.Put(t, services, serviceAt("one", "10.96.0.1", ""))
	s.Put(t, services, serviceAt("two", "10.96.0.2", ""))
	state := start(t, s, rows).State
	rows.wants(t, "from the begin", "10.96.0.2:80/tcp []")
	testkit.Eventually(t, 30*time.Second, func() error {
		w := ask(state.Probes(), "/readyz")
		if w.Code != http.StatusOK {
			return fmt.Errorf("/readyz: %d", w.Code)
		}
		return nil
	})
	s.Put(t, services, serviceAt("three", "10.96.0.3", ""))
	rows.wants(t, "another", "10.96.0.2:80/tcp []; 10.96.0.3:80/tcp []")
	rows.set(func() { rows.other = service.Key{} })
	rows.wants(t, "it is free", "10.96.0.1:80/tcp []; 10.96.0.2:80/tcp []; 10.96.0.3:80/tcp []")
}

// TestRetryUnderChange has a Service that is never served, since another owner has its address, and whose endpoints
// change all the time. Other failed changes are still written. The log reports this when all is retried, not each time.
func TestRetryUnderChange(t *testing.T) {
	s, rows := kubetest.Start(t), newTable()
	rows.other = service.Key{Frontend: netip.MustParseAddrPort("10.96.0.1:80"), Protocol: service.TCP}
	s.Put(t, services, serviceAt("taken", "10.96.0.1", ""))
	var log syncBuffer
	a := start(t, s, rows, logging(&log))
	s.Put(t, services, serviceAt("two", "10.96.0.2", ""))
	rows.wants(t, "from the begin", "10.96.0.2:80/tcp []")
	rows.set(func() { rows.refuses = errors.New("no") })
	s.Put(t, "/api/v1/namespaces", shopNamespace)
	s.Put(t, networkPolicies,
		`{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"namespace": "shop", "name": `+
			`"closed"}, "spec": {"podSelector": {}}}`)
	testkit.Eventually(t, time.Minute, func() error {
		if rounds := a.State.Report().Sync; rounds.Failed == 0 {
			return errors.New("no round has failed")
		}
		return nil
	})
	rows.set(func() { rows.refuses = nil })
	churn := 0
	testkit.Eventually(t, 30*time.Second, func() error {
		churn++
		s.Put(t, endpointSlices, sliceOf("taken", "taken", "a", fmt.Sprintf("10.1.0.%d", churn%250+1)))
		rows.Lock()
		defer rows.Unlock()
		if len(rows.policies) != 1 || rows.calls < 200 {
			return fmt.Errorf("after %d changes and %d calls there are the policies %v", churn, rows.calls, rows.policies)
		}
		return nil
	})
	n := strings.Count(log.String(), "level=ERROR")
	testkit.Check(t, n != 0 && n <= 20, "%d errors in the log, of 200 calls that failed", n)
}
