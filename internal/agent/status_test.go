// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mustang/internal/agent/status"
	"mustang/internal/kube"
	"mustang/internal/kube/kubetest"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// golden compares a text with a file of testdata, which MUSTANG_UPDATE=1 writes.
func golden(t *testing.T, name, have string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if os.Getenv("MUSTANG_UPDATE") != "" {
		testkit.Succeed(t, os.WriteFile(path, []byte(have), 0o600))
	}
	want := testkit.Must(os.ReadFile(path))(t)
	diff := cmp.Diff(string(want), have)
	testkit.Check(t, diff == "", "%s (-want +have):\n%s", name, diff)
}

// times matches the texts that differ from run to run.
var times = regexp.MustCompile(`[0-9.]+ (ms|s( ago)?)\b|[0-9]+ rounds?|[0-9]+ failed`)

// TestUnread has an API server that refuses lists: the status, the probe and one line of the log report only that.
func TestUnread(t *testing.T) {
	s := kubetest.Start(t)
	var tries atomic.Int32
	forbid := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		tries.Add(1)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w,
			`{"kind": "Status", "status": "Failure", "reason": "Forbidden", "code": 403, "message": "forbidden: User \"joe\" `+
				`cannot list"}`)
	})
	watched := []kube.Kind{kube.Services, kube.EndpointSlices, kube.Nodes, kube.Namespaces, kube.Pods,
		kube.NetworkPolicies}
	for _, k := range watched {
		s.Handle(listOf(k), forbid)
	}
	const definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/" +
		"clusternetworkpolicies.policy.networking.k8s.io"
	s.Handle(definition, forbid)
	rows := newTable()
	var log syncBuffer
	a := start(t, s, rows, joining(&network{}), logging(&log), func(o *Options) {
		o.Warnings = func() []string { return []string{"look out"} }
	})
	state := a.State
	const want = " cannot list (apply the ClusterRoleBinding)"
	testkit.Eventually(t, 30*time.Second, func() error {
		var text bytes.Buffer
		r, err := a.Report(t.Context(), status.Query{})
		if err == nil {
			err = status.WriteText(&text, r, status.Query{})
		}
		if err != nil {
			return err
		}
		if r.Well() || !strings.Contains(text.String(), "cluster  error: cannot read the cluster: ") ||
			!strings.Contains(text.String(), want+"\n") ||
			!strings.Contains(text.String(), "warning: look out\n") || strings.Contains(text.String(), "Node object") {
			return fmt.Errorf("the status is\n%s", &text)
		}
		w := ask(state.Probes(), "/readyz")
		if w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), want) {
			return fmt.Errorf("/readyz: %d, %s", w.Code, w.Body)
		}
		return nil
	})
	enough := tries.Load() + int32(2*len(watched))
	testkit.Eventually(t, time.Minute, func() error {
		if n := tries.Load(); n < enough {
			return fmt.Errorf("%d lists were refused, want %d", n, enough)
		}
		return nil
	})
	text := log.String()
	testkit.Check(t, strings.Count(text, "level=ERROR") == 1 && strings.Contains(text, want), "the log is\n%s", text)
	for _, k := range watched {
		s.Handle(listOf(k), nil)
	}
	s.Handle(definition, nil)
	testkit.Eventually(t, time.Minute, func() error {
		if text := state.Report().Unread; text != "" {
			return errors.New(text)
		}
		return nil
	})
}

func listOf(k kube.Kind) string {
	if k.Group == "" {
		return "/api/" + k.Version + "/" + k.Resource
	}
	return "/apis/" + k.Group + "/" + k.Version + "/" + k.Resource
}

// TestReport has objects that are well, and one of each kind that is wrong, with names that no terminal should see.
func TestReport(t *testing.T) {
	s := kubetest.Start(t)
	rows := &table{rows: map[service.Key]service.Service{}, room: 2}
	rows.other = service.Key{Frontend: netip.MustParseAddrPort("10.96.0.4:80"), Protocol: service.TCP}
	a := agentOver(t, s, rows, joining(&network{}), func(o *Options) {
		o.Endpoints = pods{"10.1.1.2"}
		o.Config = status.Config{Node: "here", Version: "0.1.0", PID: 7, Link: "veth", Services: "both", Routing: "auto"}
	})
	report := func(q status.Query) status.Report {
		return testkit.Must(a.Report(t.Context(), q))(t)
	}
	r := report(status.Query{})
	testkit.Check(t, !r.Synced && !r.Well(), "before it runs there is %+v", r)
	external := `, "externalIPs": ["192.0.2.9", "127.0.0.1"]`
	s.Put(t, nodes, nodeAt("here", "192.0.2.1", `"podCIDRs": ["10.1.1.0/24"]`, ""))
	s.Put(t, nodes, nodeAt("far", "192.0.2.2", `"podCIDRs": ["10.1.2.0/24", "10.1.3.0/24"]`, ""))
	s.Put(t, services, serviceAt("one", "10.96.0.1", external))
	s.Put(t, endpointSlices, sliceOf("one", "one", "a", "10.1.0.1"))
	s.Put(t, services, serviceAt("pending", "", ""))
	s.Put(t, services, serviceAt("taken", "10.96.0.4", ""))
	s.Put(t, podList, podAt("old", "10.1.1.2", "2026-01-01T00:00:00Z", "Running"))
	s.Put(t, podList, podAt("young", "10.1.1.2", "2026-01-02T00:00:00Z", "Running"))
	s.Put(t, podList, podAt("foreign", "10.1.1.3", "2026-01-02T00:00:00Z", "Running"))
	s.Put(t, networkPolicies, fmt.Sprintf(denyAll, ""))
	startAgent(t, a)
	rows.wants(t, "first list", "10.96.0.1:80/tcp [10.1.0.1:8080]; 192.0.2.9:80/tcp [10.1.0.1:8080]")
	s.Put(t, services, serviceAt("two", "10.96.0.2", external))
	s.Put(t, services, strings.Replace(serviceAt("bad", "10.96.0.300", ""), "bad", `bad\u001b[2Jname`, 1))
	s.Put(t, networkPolicies,
		`{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"namespace": "shop", "name": "big"},
"spec": {"podSelector": {}, "ingress": [{"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}, {"ipBlock": {"cidr": "11.0.0.0/8"}}, {"ipBlock": {"cidr": "12.0.0.0/8"}}]}]}}`)
	s.Put(t, networkPolicies, fmt.Sprintf(denyAll, `, "later": {}`))
	want := map[string]int{status.Service: 4, status.NetworkPolicy: 2, status.Node: 1, status.Pod: 2}
	testkit.Eventually(t, 30*time.Second, func() error {
		r := report(status.Query{})
		for _, c := range r.Kinds {
			if c.Wrong != want[c.Kind] || c.Waiting > 0 {
				return fmt.Errorf("there is %+v, of %+v", c, r.Objects)
			}
		}
		if r.Well() {
			return fmt.Errorf("there is %+v", r)
		}
		return nil
	})
	for name, q := range map[string]status.Query{
		"summary.txt": {Limit: 3}, "wrong.txt": {Wrong: true}, "service.txt": {Kind: "services", Name: "shop/one"},
		"pods.txt": {Kind: "pod"},
	} {
		var text bytes.Buffer
		r := report(q)
		r.Sync.Error, r.Nodes.Error = "it is the last error", ""     // the order of joined ones differs
		for _, rounds := range []*status.Rounds{&r.Sync, &r.Nodes} { // between a change and the end of its round
			rounds.Waiting, rounds.Running = time.Time{}, time.Time{}
		}
		testkit.Succeed(t, status.WriteText(&text, r, q))
		golden(t, name, times.ReplaceAllString(text.String(), "# $1"))
	}
}

// slowList is a table whose next list takes until release is closed.
type slowList struct {
	*table
	armed          atomic.Bool
	begun, release chan struct{}
}

func (s *slowList) List(ctx context.Context) ([]service.Service, error) {
	all, err := s.table.List(ctx)
	if s.armed.CompareAndSwap(true, false) {
		close(s.begun)
		<-s.release
	}
	return all, err
}

// TestReportHoldsNothingUp has a Service come while a status reads the tables: it is written, and the status blames
// nothing.
func TestReportHoldsNothingUp(t *testing.T) {
	s, rows := kubetest.Start(t), newTable()
	slow := &slowList{table: rows, begun: make(chan struct{}), release: make(chan struct{})}
	s.Put(t, services, serviceAt("one", "10.96.0.1", ""))
	a := start(t, s, rows, func(o *Options) { o.Services = slow })
	rows.wants(t, "first list", "10.96.0.1:80/tcp []")
	slow.armed.Store(true)
	done := make(chan status.Report)
	go func() {
		r, _ := a.Report(t.Context(), status.Query{Kind: status.Service})
		done <- r
	}()
	<-slow.begun
	s.Put(t, services, serviceAt("two", "10.96.0.2", ""))
	rows.wants(t, "while a status reads", "10.96.0.1:80/tcp []; 10.96.0.2:80/tcp []")
	close(slow.release)
	if r := <-done; len(r.Objects) != 2 || r.Kinds[0].Wrong > 0 || r.Kinds[0].InTables != 1 {
		t.Errorf("there are %+v, %+v", r.Kinds, r.Objects)
	}
}
