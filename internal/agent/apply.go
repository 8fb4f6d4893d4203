// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"slices"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/policies"
	"mustang/internal/kube"
	"mustang/internal/policy"
	"mustang/internal/service"
	"mustang/internal/service/manifest"
)

// defaultQuota is the quota of a namespace if none is set: an eighth of each map.
const defaultQuota = 8

// applyPolicies writes the policies of a version. Those of namespaces above their quota are written without rules. If the node is full all the
// same, what is in force stays: degraded tells why. Before anything is in force, that is an error as any other.
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
	for _, e := range over {
		a.overQuota = append(a.overQuota, e.excess.Error()+"; its NetworkPolicies isolate the pods that they select")
		for _, name := range e.stripped {
			text := "no rules of it are in force, and it isolates the pods that it selects: " + e.excess.Error()
			a.noRoom[name] = text
			a.warnings.add(kube.Warning{Kind: kube.NetworkPolicies, Namespace: name.Namespace, Name: name.Name, Reason: "OverQuota", Text: text})
		}
	}
	return degraded, err
}

// overQuota is a namespace above its quota, and its policies that have lost their rules.
type overQuota struct {
	excess   *policy.LimitError
	stripped []manifest.Name
}

// writePolicies writes policies, without the rules of those that the quota refuses.
func (a *Agent) writePolicies(ctx context.Context, want *policies.Set) (all []overQuota, err error) {
	want.Previous, want.Quota = nil, a.NamespaceQuota
	if want.Quota <= 0 {
		want.Quota = defaultQuota
	}
	for {
		a.State.Step()
		_, err := a.Policies.Apply(ctx, service.Agent, *want)
		var quota *policy.QuotaError
		if !errors.As(err, &quota) {
			return all, err
		}
		had := len(all)
		for _, e := range quota.Over {
			if names := strip(want, e.Namespace); len(names) > 0 {
				all = append(all, overQuota{e, names})
			}
		}
		if len(all) == had {
			want.Quota = 0 // policies of other owners are above it
		}
	}
}

// strip takes the rules from the NetworkPolicies of a namespace, so that they only isolate, and returns the names of those that had some.
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

// isFull reports whether an error tells that policies have no room on the node.
func isFull(err error) bool {
	return errors.As(err, new(*objects.FullError)) || errors.As(err, new(*policy.LimitError))
}
