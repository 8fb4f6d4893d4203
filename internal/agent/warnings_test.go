// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"mustang/internal/agent/status"
	"mustang/internal/kube"
	"mustang/internal/kube/kubetest"
	"mustang/internal/service"
	"mustang/internal/service/manifest"
	"mustang/internal/testkit"
)

// TestContentOfObjects has objects with requests that the node cannot serve: a health-check port that a process uses,
// more rules than fit, an address that no device has. Events, the status and a metric report it. All else is written,
// and no round fails.
func TestContentOfObjects(t *testing.T) {
	s := kubetest.Start(t)
	rows := &table{rows: map[service.Key]service.Service{}, room: 2, busy: 30100, absent: true}
	s.Put(t, nodes, nodeAt("here", "192.0.2.1", `"podCIDRs": ["10.1.0.0/24"]`, ""))
	s.Put(t, services, serviceAt("lb", "10.96.0.1",
		`, "type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 30100,
"externalIPs": ["192.0.2.10"]`))
	s.Put(t, networkPolicies, fmt.Sprintf(denyAll,
		`, "ingress": [{"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}, {"ipBlock": {"cidr": "11.0.0.0/8"}}, {"ipBlock": `+
			`{"cidr": "12.0.0.0/8"}}]}]`))
	n := &network{}
	a := start(t, s, rows, joining(n), func(o *Options) { o.Endpoints = pods{} })
	state := a.State
	testkit.Eventually(t, 30*time.Second, func() error {
		all := s.Objects("/api/v1/events")
		report, err := a.Report(t.Context(), status.Query{Wrong: true})
		if err != nil {
			return err
		}
		for object, why := range map[string]string{
			"service shop/lb":         "health-check port 30100 of service 192.0.2.10:80/tcp: address already in use",
			"networkpolicy shop/deny": "no rules of it are in force: namespace shop: 9,114 of 8,192 verdict rows; its NetworkPolicies isolate the pods that they select",
			"node here":               "no device has an address of the node: [192.0.2.1]",
		} {
			wrong := slices.ContainsFunc(report.Objects, func(o status.Object) bool {
				return o.String() == object && strings.Contains(fmt.Sprint(o.Why, o.Entries), why)
			})
			if !wrong || !strings.Contains(all, why) {
				return fmt.Errorf("%s: there are %+v, and the events %s", object, report.Objects, all)
			}
		}
		want := "namespace shop: 9,114 of 8,192 verdict rows; its NetworkPolicies isolate the pods that they select"
		if !slices.Contains(report.Warnings, want) {
			return fmt.Errorf("warnings are %q", report.Warnings)
		}
		for _, want := range []string{`"message":"node here: health-check port`, `"message":"no device has`} {
			if !strings.Contains(all, want) {
				return fmt.Errorf("%s: there are the events %s", want, all)
			}
		}
		w := ask(state.Metrics(), "/metrics")
		for kind, n := range map[string]int{status.Service: 1, status.NetworkPolicy: 1, status.ClusterNetworkPolicy: 0,
			status.Pod: 0, status.Node: 1} {
			if want := fmt.Sprintf("mustang_agent_objects_refused{kind=%q} %d\n", kind,
				n); !strings.Contains(w.Body.String(), want) {
				return fmt.Errorf("the metrics lack %s", want)
			}
		}
		w = ask(state.Probes(), "/readyz")
		if rounds := state.Report().Sync; w.Code != 200 || rounds.Failed > 0 ||
			!strings.Contains(rows.String(), "192.0.2.10:80/tcp") {
			return fmt.Errorf("/readyz: %d, rounds %+v, services %s", w.Code, rounds, rows)
		}
		return nil
	})
}

// TestFloodOfWarnings changes a Service all the time, each time with other addresses that are not served. Its namespace
// gets a line and an event for each change up to its limit. Other namespaces get theirs.
func TestFloodOfWarnings(t *testing.T) {
	s := newSet("here")
	s.setTaken(manifest.Taken{Pods: map[netip.Prefix]string{netip.MustParsePrefix("10.199.0.0/16"): "far"}})
	var text strings.Builder
	w := newWarnings(slog.New(slog.NewTextHandler(&text, nil)), one)
	put := func(namespace, name, object string) {
		t.Helper()
		testkit.Succeed(t, s.on(kube.Event{Kind: kube.Services, Namespace: namespace, Name: name, Object: []byte(object)}))
		collect(s, w)
	}
	for i := range 200 {
		var ips []string
		for j := range 50 {
			ips = append(ips, fmt.Sprintf("%q", fmt.Sprintf("10.199.%d.%d", i, j)))
		}
		put("shop", "flood", serviceAt("flood", "10.96.0.1", `, "externalIPs": [`+strings.Join(ips, ",")+`]`))
	}
	if n := strings.Count(text.String(), "\n"); n != warningsBurst || len(w.waiting) != n {
		t.Errorf("there are %d lines and %d events, want %d", n, len(w.waiting), warningsBurst)
	}
	for range len(w.waiting) {
		v := <-w.waiting
		testkit.Require(t, len(v.Text) <= 1024 && strings.Count(v.Text, "is within the pods' range") >= 5 &&
			strings.Count(v.Text, "shop/flood") == 1,
			"it says %q", v.Text)
	}
	put("other", "web", strings.Replace(serviceAt("web", "10.96.0.2", `, "externalIPs": ["10.199.0.1"]`), "shop",
		"other", 1))
	testkit.Check(t, len(w.waiting) == 1, "of another namespace there are %d events", len(w.waiting))
	testkit.Check(t, len(s.record(manifest.Name{Namespace: "shop", Name: "flood"}).notServed) == 50,
		"the status has not all that is not served")
}

// TestWarningWithoutRoom repeats a warning that the full queue refused, but not one that it took.
func TestWarningWithoutRoom(t *testing.T) {
	w := quiet()
	for i := range maxWaiting {
		w.add(kube.Warning{Kind: kube.Namespaces, Namespace: fmt.Sprint("n", i), Name: "web", Text: "no"})
	}
	v := kube.Warning{Kind: kube.Services, Namespace: "shop", Name: "web", Text: "no"}
	w.add(v)
	<-w.waiting
	w.add(v)
	w.add(v)
	<-w.waiting
	w.add(v)
	testkit.Check(t, len(w.waiting) == maxWaiting-1, "%d events wait, want %d", len(w.waiting), maxWaiting-1)
}

// TestEventsOfNodes has two nodes warn of Services, of faults everywhere and of their own: the former become one event
// without a node, also if a node repeats the warning once it has computed the Service.
func TestEventsOfNodes(t *testing.T) {
	s := kubetest.Start(t)
	client := testkit.Must(kube.Connect(s.Kubeconfig(t)))(t)
	object := balancer("web", "01", `"clusterIP": "10.96.0.1", "externalIPs": ["127.0.0.1"]`, "")
	s.Put(t, services, object)
	s.Put(t, services, serviceAt("busy", "10.96.0.1", ""))
	for _, node := range []string{"n1", "n2"} {
		w := quiet()
		set := newSet(node)
		testkit.Succeed(t, set.on(kube.Event{Kind: kube.Services, Namespace: "shop", Name: "web", Object: []byte(object)}))
		full := map[manifest.Name][]string{{Namespace: "shop", Name: "web"}: {"pool is full"}}
		w.notServed(full, true, set)
		collect(set, w)
		w.notServed(full, true, set)
		w.notServed(map[manifest.Name][]string{{Namespace: "shop", Name: "busy"}: {"port 1 is in use"}}, false, set)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go w.post(ctx, client, node)
	}
	wantsEvents(t, s, map[string]int{
		`"involvedObject"`: 4, "127.0.0.1 is a loopback address": 1, `"source":{"component":"mustang-agent"}`: 2,
		"pool is full": 1, `"message":"node n1: port 1 is in use"`: 1, `"host":"n1"`: 1,
		`"message":"node n2: port 1 is in use"`: 1, `"host":"n2"`: 1,
	})
}

// TestUnservedPolicies has a cluster stop serving ClusterNetworkPolicies at any known version: a node keeps the
// installed policies, a new node takes no pods, and the status and an event report it.
func TestUnservedPolicies(t *testing.T) {
	s := kubetest.Start(t)
	const list = "/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies"
	const definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/" +
		"clusternetworkpolicies.policy.networking.k8s.io"
	const why = "clusternetworkpolicies.policy.networking.k8s.io is served neither as v1beta1 nor as v1alpha2: what is " +
		"installed stays"
	s.Put(t, list, `{"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy", "metadata": `+
		`{"name": "deny"},
"spec": {"tier": "Admin", "priority": 3, "subject": {"namespaces": {}}, "ingress": [{"action": "Deny", "from": [{"namespaces": {}}]}]}}`)
	begin := func(node string) (*Agent, *table) {
		rows := newTable()
		s.Put(t, nodes, nodeAt(node, "192.0.2.1", "", ""))
		a := start(t, s, rows, func(o *Options) { o.Node = node })
		return a, rows
	}
	told := func(a *Agent, node string) {
		t.Helper()
		testkit.Eventually(t, time.Minute, func() error {
			report, err := a.Report(t.Context(), status.Query{})
			if err != nil {
				return err
			}
			if all := s.Objects("/api/v1/events"); !strings.HasSuffix(report.Unread, why) || !strings.Contains(all, why) ||
				!strings.Contains(all, fmt.Sprintf(`"host":%q`, node)) {
				return fmt.Errorf("%s: the status has %q, the events are %s", node, report.Unread, all)
			}
			return nil
		})
	}
	old, rows := begin("old")
	installed := rules{policies: []string{"/deny"}}
	rows.wantsRules(t, "first list", installed)
	s.Handle(definition, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"kind": "CustomResourceDefinition", "apiVersion": "apiextensions.k8s.io/v1", "spec": ` +
			`{"versions": [{"name": "v1", "served": true}, {"name": "v1alpha2", "served": false}]}}`))
	}))
	s.Handle(list, http.NotFoundHandler())
	s.Forget()
	told(old, "old")
	fresh, none := begin("new")
	told(fresh, "new")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err := fresh.AwaitPod(ctx, "shop", "web", "")
	testkit.Check(t, err != nil && strings.Contains(err.Error(), why), "a pod of a new node: %v", err)
	s.Put(t, services, serviceAt("web", "10.96.0.1", ""))
	rows.wants(t, "a Service that comes", "10.96.0.1:80/tcp []")
	rows.wantsRules(t, "what is installed", installed)
	s.Handle(definition, nil)
	s.Handle(list, nil)
	none.wantsRules(t, "served again", installed)
}
