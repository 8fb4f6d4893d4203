// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/policies"
	"mustang/internal/kube"
	"mustang/internal/policy"
	"mustang/internal/service"
	"mustang/internal/service/manifest"
)

// defaultQuota is the quota of a namespace if none is set: an eighth of each map.
const defaultQuota = 8

// applyPolicies writes the policies of a version. Those of namespaces above their quota are written without rules. If
// the node is full all the same, what is in force stays: degraded tells why. Before anything is in force, that is an
// error as any other.
func (a *Agent) applyPolicies(ctx context.Context, want policies.Set, version uint64) (degraded, err error) {
	over, err := a.writePolicies(ctx, &want)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.policies.failure = err; err == nil {
		a.policies.written, a.policies.last = version, want.Policies
	}
	why := ""
	if isFull(err) && a.policies.written > 0 {
		why, degraded, err = err.Error(), err, nil
	}
	a.State.SetDegraded("policies", why)
	a.proceed()
	a.noRoom, a.overQuota = map[manifest.Name]string{}, nil
	for _, namespace := range slices.Sorted(maps.Keys(over)) {
		e := over[namespace]
		a.overQuota = append(a.overQuota, e.excess.Error()+"; "+e.isolated)
		for _, name := range e.policies {
			text := "no rules of it are in force: " + e.excess.Error() + "; " + e.isolated
			a.noRoom[name] = text
			a.warnings.add(kube.Warning{Kind: kube.NetworkPolicies, Namespace: name.Namespace, Name: name.Name,
				Reason: "OverQuota", Text: text})
		}
	}
	return degraded, err
}

// overQuota is a namespace above its quota, its policies that are not in force as they are, and which pods are isolated
// instead.
type overQuota struct {
	excess   *policy.LimitError
	policies []manifest.Name
	isolated string
}

// writePolicies writes policies. Those of namespaces above their quota lose their rules, and if they are too many even
// so, one takes the place of all.
func (a *Agent) writePolicies(ctx context.Context, want *policies.Set) (map[string]overQuota, error) {
	want.Previous, want.Quota = nil, a.NamespaceQuota
	over := map[string]overQuota{}
	for {
		a.State.Step()
		_, err := a.Policies.Apply(ctx, service.Agent, *want)
		var quota *policy.QuotaError
		if !errors.As(err, &quota) {
			return over, err
		}
		fewer := false
		for _, e := range quota.Over {
			isolated := "its NetworkPolicies isolate the pods that they select"
			names := strip(want, e.Namespace)
			if len(names) == 0 {
				isolated = "its NetworkPolicies isolate all of its pods"
				names = join(want, e.Namespace)
			}
			if len(names) > 0 {
				over[e.Namespace], fewer = overQuota{e, names, isolated}, true
			}
		}
		if !fewer {
			want.Quota = 0 // policies of other owners are above it
		}
	}
}

// strip takes the rules from the NetworkPolicies of a namespace, so that they only isolate, and returns the names of
// those that had some.
func strip(want *policies.Set, namespace string) (names []manifest.Name) {
	want.Policies = slices.Clone(want.Policies)
	for i := range want.Policies {
		p := &want.Policies[i]
		if p.Tier == policy.Namespaced && p.Namespace == namespace && len(p.Ingress)+len(p.Egress) > 0 {
			p.Ingress, p.Egress = nil, nil
			names = append(names, manifest.Name{Namespace: namespace, Name: p.Name})
		}
	}
	return names
}

// join has one NetworkPolicy without rules, in place of several of a namespace, isolate all of its pods, and returns
// the names of all; none if there is one.
func join(want *policies.Set, namespace string) (names []manifest.Name) {
	var one policy.Policy
	rest := slices.DeleteFunc(slices.Clone(want.Policies), func(p policy.Policy) bool {
		is := p.Tier == policy.Namespaced && p.Namespace == namespace
		if is {
			p.IsolatesIngress, p.IsolatesEgress = p.IsolatesIngress || one.IsolatesIngress, p.IsolatesEgress ||
				one.IsolatesEgress
			p.JudgesNode = p.JudgesNode || one.JudgesNode
			one, names = p, append(names, manifest.Name{Namespace: namespace, Name: p.Name})
		}
		return is
	})
	if len(names) < 2 {
		return nil
	}
	one.Subject.Pods = policy.Selector{}
	want.Policies = append(rest, one)
	return names
}

// isFull reports whether an error tells that policies have no room on the node.
func isFull(err error) bool {
	return errors.As(err, new(*objects.FullError)) || errors.As(err, new(*policy.LimitError))
}

// AwaitPod waits until the tables have the policies of the cluster, as far as the agent has been told of them when it
// knows a Pod of this node: its labels and its namespace. The UID is that of the runtime, which for a static Pod is not
// that of its mirror; empty: any. A name that is empty stands for a pod that is none of the cluster: only the tables
// are waited for. The error tells what the agent still waited for when the context ended.
func (a *Agent) AwaitPod(ctx context.Context, namespace, name, uid string) error {
	var from uint64 // the version that has to be written; 0: not known yet
	for {
		a.mu.Lock()
		lacks := a.lacks(namespace, name, uid)
		if from == 0 && lacks == "" {
			from = a.policies.version
			a.awaited++
			defer a.noLongerAwaited()
			if a.policies.changed {
				a.wake() // policiesDue may have put the change off
			}
		}
		if from > 0 && a.policies.written >= from {
			a.mu.Unlock()
			return nil
		}
		if from > 0 {
			lacks = "the policies are not written yet"
			if err := a.policies.failure; err != nil {
				lacks = fmt.Sprintf("the policies cannot be written: %v", err)
			}
		}
		if a.progress == nil {
			a.progress = make(chan struct{})
		}
		progress := a.progress
		a.mu.Unlock()
		select {
		case <-progress:
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", lacks, ctx.Err())
		}
	}
}

func (a *Agent) noLongerAwaited() {
	a.mu.Lock()
	a.awaited--
	a.mu.Unlock()
}

// lacks tells what the agent has not been told yet of a Pod; empty: it knows it.
func (a *Agent) lacks(namespace, name, uid string) string {
	at := object{kube.Pods.Resource, namespace, name}
	known := a.policies.of[at].pod
	_, there := a.policies.of[object{kube.Namespaces.Resource, "", namespace}]
	switch {
	case !a.synced:
		return strings.TrimSuffix("the agent has not read all objects of the cluster yet: "+a.State.Report().Unread, ": ")
	case name == "":
		return ""
	case a.unread[at] != "":
		return fmt.Sprintf("Pod %s/%s cannot be read: %s", namespace, name, a.unread[at])
	case known == nil || uid != "" && known.uid != uid && known.mirrors != uid:
		return fmt.Sprintf("the API server has told of no Pod %s/%s with UID %q on this node", namespace, name, uid)
	case !there:
		return fmt.Sprintf("the API server has told of no Namespace %s", namespace)
	}
	return ""
}

// proceed has those look again who wait. The caller has the lock.
func (a *Agent) proceed() {
	if a.progress != nil {
		close(a.progress)
		a.progress = nil
	}
}
