// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/policies"
	"mustang/internal/kube"
	"mustang/internal/policy"
	"mustang/internal/service"
)

const defaultQuota = 8

// applyPolicies writes the policies of a version, for a namespace above its quota without rules. If the node is full,
// the policies in force stay, and degraded is the reason. If none are in force yet, that is an ordinary error.
func (a *Agent) applyPolicies(ctx context.Context, want policies.Set, version uint64) (degraded, err error) {
	over, err := a.writePolicies(ctx, &want)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.policies.failure = err; err == nil {
		a.policies.written, a.policies.last, a.policies.lastPeers = version, want.Policies, a.policies.peers
	}
	why := ""
	full := errors.As(err, new(*objects.FullError)) || errors.As(err, new(*policy.LimitError))
	if full && a.policies.written > 0 {
		why, degraded, err = err.Error(), err, nil
	}
	a.State.SetDegraded("policies", why)
	a.over = over
	for _, namespace := range slices.Sorted(maps.Keys(over)) {
		for _, name := range over[namespace].names {
			a.warnings.add(kube.Warning{Kind: kube.NetworkPolicies, Namespace: namespace, Name: name, Reason: "OverQuota",
				Text: a.notInForce(namespace, name)})
		}
	}
	return degraded, err
}

func (a *Agent) notInForce(namespace, name string) string {
	if o := a.over[namespace]; slices.Contains(o.names, name) {
		return "no rules of it are in force: " + o.text
	}
	return ""
}

// writePolicies writes policies. If a namespace is above its quota, its policies are written without rules: they only
// isolate. If even those are too many, one policy replaces them all and isolates all pods of the namespace.
func (a *Agent) writePolicies(ctx context.Context, want *policies.Set) (map[string]overQuota, error) {
	want.Previous, want.Quota = nil, a.NamespaceQuota
	over := map[string]overQuota{}
	for {
		a.State.Step()
		_, err := a.Policies.Apply(ctx, service.Agent, *want)
		quota, ok := errors.AsType[*policy.QuotaError](err)
		if !ok {
			return over, err
		}
		fewer := false
		for _, e := range quota.Over {
			if names, how := isolate(want, e.Namespace); len(names) > 0 {
				over[e.Namespace], fewer = overQuota{e.Error() + "; its NetworkPolicies isolate " + how, names}, true
			}
		}
		if !fewer {
			want.Quota = 0 // policies of other owners are above it
		}
	}
}

// isolate removes the rules of the NetworkPolicies of a namespace or, if they have none, replaces several with one that
// isolates all pods. It returns their names, and the pods that they isolate.
func isolate(want *policies.Set, namespace string) (names []string, how string) {
	own := func(p policy.Policy) bool { return p.Tier == policy.Namespaced && p.Namespace == namespace }
	all := slices.Clone(want.Policies)
	for i := range all {
		if p := &all[i]; own(*p) && len(p.Ingress)+len(p.Egress) > 0 {
			p.Ingress, p.Egress = nil, nil
			names = append(names, p.Name)
		}
	}
	if want.Policies = all; len(names) > 0 {
		return names, "the pods that they select"
	}
	var one policy.Policy
	rest := slices.DeleteFunc(slices.Clone(all), func(p policy.Policy) bool {
		if own(p) {
			p.IsolatesIngress = p.IsolatesIngress || one.IsolatesIngress
			p.IsolatesEgress = p.IsolatesEgress || one.IsolatesEgress
			p.JudgesNode = p.JudgesNode || one.JudgesNode
			one, names = p, append(names, p.Name)
		}
		return own(p)
	})
	if len(names) < 2 {
		return nil, ""
	}
	one.Subject.Pods = policy.Selector{}
	want.Policies = append(rest, one)
	return names, "all of its pods"
}

const longestRest = 5 * time.Second // bounds how long changes of Pods are put off

// policiesDue reports whether to write policies now. Changes of Pods alone wait, unless a pod waits for its policies.
func (a *Agent) policiesDue() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.policies.changed || a.policies.urgent || a.awaited > 0 {
		return a.policies.changed
	}
	rest := time.Until(a.podsDue)
	if rest > 0 {
		a.podsWake.Reset(rest)
	}
	return rest <= 0
}

// policiesTook puts off changes of Pods for the duration of a round: Services get half of the time.
func (a *Agent) policiesTook(took time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.podsDue = time.Now().Add(min(took, longestRest))
}

// AwaitPod waits until the agent has read a Pod of this node, its labels and its namespace, and the tables contain the
// policies read by then. The UID is the runtime's, which for a static Pod differs from the mirror's; empty: any.
// An empty name stands for a pod outside the cluster: AwaitPod then waits only for the tables. If the context ends, the
// error names the missing part.
func (a *Agent) AwaitPod(ctx context.Context, namespace, name, uid string) error {
	var from uint64 // the version that has to be written; 0: not known yet
	for {
		a.mu.Lock()
		lacks := a.lacks(namespace, name, uid)
		if from == 0 && lacks == "" {
			from = a.policies.version
			a.awaited++
			defer func() { a.mu.Lock(); a.awaited--; a.mu.Unlock() }()
			if a.policies.changed {
				a.wake() // policiesDue may have put the change off
			}
		}
		written, failure := a.policies.written, a.policies.failure
		a.mu.Unlock()
		switch {
		case from == 0:
		case written >= from:
			return nil
		case failure != nil:
			lacks = fmt.Sprintf("the policies cannot be written: %v", failure)
		default:
			lacks = "the policies are not written yet"
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", lacks, ctx.Err())
		}
	}
}

func (a *Agent) lacks(namespace, name, uid string) string {
	at := object{kube.Pods.Resource, namespace, name}
	known := a.policies.of[at]
	_, there := a.policies.of[object{kube.Namespaces.Resource, "", namespace}]
	switch {
	case !a.synced:
		return strings.TrimSuffix("the agent has not read all objects of the cluster yet: "+a.State.Report().Unread, ": ")
	case a.Key != "" && !a.nodes.joined:
		return "the agent has not made the encrypted routes to other nodes yet"
	case name == "":
		return ""
	case a.unread[at] != "":
		return fmt.Sprintf("Pod %s/%s cannot be read: %s", namespace, name, a.unread[at])
	case !known.here || uid != "" && !slices.Contains(known.uids[:], uid):
		return fmt.Sprintf("the agent has not received Pod %s/%s with UID %q of this node", namespace, name, uid)
	case !there:
		return fmt.Sprintf("the agent has not received Namespace %s", namespace)
	}
	return ""
}

// readInForce reads the policies of other owners and, once, the tables' content from an earlier agent.
func (a *Agent) readInForce(ctx context.Context) error {
	of, endpoints, err := a.Policies.ByOwner(ctx)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.policies.last == nil {
		a.policies.last = append([]policy.Policy{}, of[service.Agent]...)
	}
	delete(of, service.Agent)
	a.policies.endpoints = endpoints
	a.policies.others = slices.Concat(slices.Collect(maps.Values(of))...)
	return nil
}
