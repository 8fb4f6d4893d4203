// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"mustang/internal/agent/status"
	"mustang/internal/datapath/policies"
	"mustang/internal/kube"
	"mustang/internal/kube/kubetest"
	"mustang/internal/policy"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// slow are policies that cannot be written, which takes longer than the first retry.
type slow struct {
	applied
	calls atomic.Int32
}

func (s *slow) Apply(context.Context, service.Owner, policies.Set) (policies.Result, error) {
	s.calls.Add(1)
	time.Sleep(firstRetry + firstRetry/5) // the time that it takes
	return policies.Result{}, errors.New("no tables")
}

// TestRestHidesNoFailure has policies that cannot be written, which takes longer than the first retry: the agent is not
// ready meanwhile.
func TestRestHidesNoFailure(t *testing.T) {
	s, rows := kubetest.Start(t), newTable()
	var log syncBuffer
	tables := &slow{applied: applied{rows}}
	s.Put(t, networkPolicies, fmt.Sprintf(denyAll, ""))
	a := start(t, s, rows, logging(&log), func(o *Options) { o.Policies = tables })
	ready := 0
	testkit.Eventually(t, time.Minute, func() error {
		r := ask(a.State.Probes(), "/readyz")
		if r.Code == 200 {
			ready++
		}
		if n := tables.calls.Load(); n < 3 {
			return fmt.Errorf("written %d times", n)
		}
		return nil
	})
	if text := log.String(); ready > 0 || strings.Contains(text, "written again") {
		t.Errorf("/readyz was 200 for %d times; log:\n%s", ready, text)
	}
}

// TestPodsElsewhere has pods come and go on another node: they change nothing here unless a rule can match them, or
// they have the address of such a pod. Policies wait until these pods have been read.
func TestPodsElsewhere(t *testing.T) {
	p := newPolicySet("here")
	change := func(e kube.Event, want bool) {
		t.Helper()
		before := p.version
		p.changed = false
		testkit.Succeed(t, p.on(e))
		testkit.Check(t, p.changed == want && (p.version != before) == want,
			"%s %s %s: changed %t, want %t", e.Kind.Resource, e.Name, e.Object, p.changed, want)
	}
	pod := func(name, node, address string) kube.Event {
		status := `{}`
		if address != "" {
			status = fmt.Sprintf(`{"podIPs": [{"ip": %q}]}`, address)
		}
		return kube.Event{Kind: kube.Pods, Namespace: "shop", Name: name, Object: fmt.Appendf(nil,
			`{"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "shop", "name": %q, `+
				`"labels": {"app": %[1]q}}, "spec": {"nodeName": %q}, "status": %s}`, name, node, status)}
	}
	gone := func(name string) kube.Event { return kube.Event{Kind: kube.Pods, Namespace: "shop", Name: name} }
	deny := kube.Event{Kind: kube.NetworkPolicies, Namespace: "shop", Name: "deny", Object: fmt.Appendf(nil, denyAll,
		`, "ingress": [{"from": [{"podSelector": {"matchExpressions": [{"key": "app", "operator": "In", `+
			`"values": ["far", "new"]}]}}]}]`)}

	change(pod("web", "here", "10.1.1.2"), true)
	change(pod("far", "elsewhere", "10.1.2.2"), false)
	change(deny, true)
	_, ready := p.set()
	_, more := <-p.needed
	testkit.Check(t, !ready && !more && p.changed, "policies are written before the pods that they name are read")
	p.elsewhere = true
	change(pod("other", "elsewhere", "10.1.2.4"), false)
	p.changed = true
	s, ready := p.set()
	testkit.Check(t, ready && len(s.Pods) == 2 && len(s.Policies) == 1,
		"%d pods and %d policies", len(s.Pods), len(s.Policies))
	change(pod("new", "elsewhere", ""), false)
	change(pod("new", "elsewhere", "10.1.2.3"), true)
	change(pod("new", "elsewhere", ""), true)
	change(gone("new"), false)
	p.peers, p.lastPeers = policy.Peers{}, p.peers
	change(pod("far", "elsewhere", "10.1.2.5"), true) // a rule in force matches it
	change(pod("far", "elsewhere", "10.1.2.2"), true)
	p.peers, p.lastPeers = p.lastPeers, policy.Peers{}
	change(pod("other", "elsewhere", "10.1.2.2"), true) // the address of far
	change(gone("far"), true)
	change(kube.Event{Kind: kube.NetworkPolicies, Namespace: "shop", Name: "deny"}, true)
	if s, _ := p.set(); len(s.Pods)+len(s.Policies) > 0 {
		t.Errorf("without policies: %d pods and %d policies", len(s.Pods), len(s.Policies))
	}
	change(pod("far", "elsewhere", "10.1.2.2"), false)
	change(gone("web"), true)
}

// TestPodMoves has a pod of a StatefulSet come back on another node: the watch of the node's own pods reports its end
// after the other watch has reported the new pod.
func TestPodMoves(t *testing.T) {
	p := newPolicySet("here")
	event := func(k kube.Kind, node string) kube.Event {
		return kube.Event{Kind: k, Namespace: "shop", Name: "web-0", Object: fmt.Appendf(nil,
			`{"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "shop", "name": "web-0"}, `+
				`"spec": {"nodeName": %q}, "status": {"podIPs": [{"ip": "10.1.2.2"}]}}`, node)}
	}
	own, others := kube.PodsOn("here"), kube.PodsElsewhere("here")
	testkit.Succeed(t, p.on(event(own, "here")))
	testkit.Succeed(t, p.on(event(others, "elsewhere")))
	testkit.Succeed(t, p.on(kube.Event{Kind: own, Namespace: "shop", Name: "web-0"}))
	pods := p.of[object{elsewhere, "shop", "web-0"}].Pods
	testkit.Check(t, len(p.of) == 1 && len(pods) == 1 && pods[0].Node == "elsewhere", "there are %+v", p.of)
}

// TestPodsRest has a change of policies that took an hour: the next Pod waits, but not while a pod of the node waits
// for its policies, and no longer than some seconds. A policy or a namespace does not wait.
func TestPodsRest(t *testing.T) {
	a := New(Options{Node: "here", State: status.NewTracker(), Log: slog.New(slog.DiscardHandler)})
	a.synced = true
	due := func(what string, want bool) {
		t.Helper()
		due := a.policiesDue()
		testkit.Check(t, due == want, "%s: due %t, want %t", what, due, want)
	}
	due("nothing", false)
	pod, namespace := object{resource: kube.Pods.Resource}, object{resource: kube.Namespaces.Resource}
	a.policies.change(pod)
	due("the first Pod", true)
	a.policies.set()
	a.policiesTook(time.Hour)
	rest := time.Until(a.podsDue)
	testkit.Check(t, rest <= longestRest, "a round in %v", rest)
	a.policies.change(pod)
	due("another Pod", false)
	a.policies.change(namespace)
	due("a namespace", true)
	a.policies.set()
	a.policies.change(pod)
	due("a Pod after it", false)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { _ = a.AwaitPod(ctx, "shop", "", "") }()
	select {
	case <-a.changed:
	case <-time.After(10 * time.Second):
		t.Fatal("the round is not woken for a pod that waits")
	}
	due("a pod of the node waits", true)
}

// TestRestEnds has a change of a Pod wait for a moment: then it is written.
func TestRestEnds(t *testing.T) {
	a := New(Options{Node: "here", State: status.NewTracker(), Log: slog.New(slog.DiscardHandler)})
	a.policies.change(object{resource: kube.Pods.Resource})
	a.policiesTook(100 * time.Millisecond)
	for a.policiesDue() { // the machine takes longer than the rest
		continue
	}
	select {
	case <-a.changed:
	case <-time.After(10 * time.Second):
		t.Fatal("the round is not woken")
	}
	testkit.Eventually(t, 10*time.Second, func() error {
		if !a.policiesDue() {
			return errors.New("the change is put off still")
		}
		return nil
	})
}

// TestChangeWhileLooked has a Service changed while a round looks at it: the next round has the change.
func TestChangeWhileLooked(t *testing.T) {
	s := newSet("here")
	for i, ip := range []string{"10.96.0.1", "10.96.0.2"} {
		of, _ := s.take()
		testkit.Succeed(t, s.on(kube.Event{Kind: kube.Services, Namespace: "shop", Name: "web",
			Object: []byte(serviceAt("web", ip, ""))}))
		resolve(of)
		if s.merge(of, quiet()); len(s.services()) != i || len(s.dirty) != 1 {
			t.Errorf("round %d: there are %v, changed %v", i, s.services(), s.dirty)
		}
	}
	all := s.services()
	testkit.Check(t, all[0].Frontend.String() == "10.96.0.1:80", "there are %v", all)
	if collect(s, quiet()); s.services()[0].Frontend.String() != "10.96.0.2:80" || len(s.dirty) > 0 {
		t.Errorf("after all there are %v", s.services())
	}
}

// BenchmarkRound processes 10,000 changed Services of five endpoints each.
func BenchmarkRound(b *testing.B) {
	s := newSet("here")
	for i := range 10_000 {
		name, ip := fmt.Sprint("web-", i), fmt.Sprintf("10.96.%d.%d", i>>8, i&255)
		var ips []string
		for k := range 5 {
			ips = append(ips, fmt.Sprintf("10.1.%d.%d", i>>8, (i+k)&255))
		}
		for kind, object := range map[kube.Kind]string{kube.Services: serviceAt(name, ip, ""),
			kube.EndpointSlices: sliceOf(name, name, "a", ips...)} {
			testkit.Succeed(b, s.on(kube.Event{Kind: kind, Namespace: "shop", Name: name, Object: []byte(object)}))
		}
	}
	w := quiet()
	for b.Loop() {
		s.all = true
		collect(s, w)
	}
}
