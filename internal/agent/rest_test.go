// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"mustang/internal/agent/healthz"
	"mustang/internal/kube"
)

// TestPodsElsewhere has pods come and go on another node: without an address, or without any policy, they change nothing here.
func TestPodsElsewhere(t *testing.T) {
	p := newPolicySet("here")
	change := func(e kube.Event, want bool) {
		t.Helper()
		before := p.version
		p.changed = false
		if _, err := p.on(e); err != nil {
			t.Fatal(err)
		}
		if p.changed != want || (p.version != before) != want {
			t.Errorf("%s %s %s: changed %t, want %t", e.Kind.Resource, e.Name, e.Object, p.changed, want)
		}
	}
	pod := func(name, node, address string) kube.Event {
		status := `{}`
		if address != "" {
			status = fmt.Sprintf(`{"podIPs": [{"ip": %q}]}`, address)
		}
		return kube.Event{Kind: kube.Pods, Namespace: "shop", Name: name, Object: fmt.Appendf(nil,
			`{"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "shop", "name": %q}, "spec": {"nodeName": %q}, "status": %s}`, name, node, status)}
	}
	gone := func(name string) kube.Event { return kube.Event{Kind: kube.Pods, Namespace: "shop", Name: name} }
	deny := kube.Event{Kind: kube.NetworkPolicies, Namespace: "shop", Name: "deny", Object: fmt.Appendf(nil, denyAll, "")}

	change(pod("web", "here", "10.1.1.2"), true)
	change(pod("far", "elsewhere", "10.1.2.2"), false)
	change(deny, true)
	if s, _ := p.set(); len(s.Pods) != 2 || len(s.Policies) != 1 {
		t.Errorf("%d pods and %d policies", len(s.Pods), len(s.Policies))
	}
	change(pod("new", "elsewhere", ""), false)
	change(pod("new", "elsewhere", "10.1.2.3"), true)
	change(pod("new", "elsewhere", ""), true)
	change(gone("new"), false)
	change(gone("far"), true)
	change(kube.Event{Kind: kube.NetworkPolicies, Namespace: "shop", Name: "deny"}, true)
	change(pod("far", "elsewhere", "10.1.2.2"), false)
	if s, _ := p.set(); len(s.Pods)+len(s.Policies) > 0 {
		t.Errorf("without policies: %d pods and %d policies", len(s.Pods), len(s.Policies))
	}
	change(gone("web"), true)
}

// TestPoliciesRest has a change of policies that took an hour: the next Pod waits, but for no more than some seconds, and not while a pod waits for its
// policies. A policy or a namespace does not wait.
func TestPoliciesRest(t *testing.T) {
	a := New(Options{Node: "here", State: healthz.New(), Log: slog.New(slog.DiscardHandler)})
	a.synced = true
	due := func(want bool) {
		t.Helper()
		if due := a.policiesDue(); due != want {
			t.Errorf("due: %t, want %t", due, want)
		}
	}
	due(false)
	pod, namespace := object{resource: kube.Pods.Resource}, object{resource: kube.Namespaces.Resource}
	a.policies.change(pod)
	due(true)
	a.restAfter(time.Hour, nil)
	due(false)
	a.policies.change(namespace)
	due(true)
	a.restAfter(time.Hour, nil) // of a round that had begun before
	due(true)
	a.policies.set()
	a.policies.change(pod)
	due(false)
	if left := time.Until(a.policies.rest.until); left > longestRest {
		t.Errorf("waits %v", left)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { _ = a.AwaitPod(ctx, "shop", "", "") }()
	select {
	case <-a.changed:
	case <-time.After(10 * time.Second):
		t.Fatal("the round is not woken for a pod that waits")
	}
	due(true)
}

// TestRestEnds has a change of policies wait for a moment: then it is written.
func TestRestEnds(t *testing.T) {
	a := New(Options{Node: "here", State: healthz.New(), Log: slog.New(slog.DiscardHandler)})
	a.policies.change(object{resource: kube.Pods.Resource})
	a.restAfter(100*time.Millisecond, nil)
	for a.policiesDue() { // the machine takes longer than the rest
		a.restAfter(time.Second, nil)
	}
	select {
	case <-a.changed:
	case <-time.After(10 * time.Second):
		t.Fatal("the round is not woken")
	}
	if !a.policiesDue() {
		t.Error("the change is put off still")
	}
}
