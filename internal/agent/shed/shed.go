// SPDX-License-Identifier: Apache-2.0

// Package shed writes network policies that a datapath may not have room for: where it has none for all, some lose their rules.
package shed

import (
	"context"
	"maps"
	"slices"
	"time"

	"mustang/internal/datapath/policies"
	"mustang/internal/kube"
	"mustang/internal/policy"
	"mustang/internal/service"
)

// Hold is how long NetworkPolicies of a namespace stay without rules that there was no room for, before all are tried again: to find out
// that there is none can take seconds.
const Hold = time.Minute

// Policies are those of a datapath.
type Policies interface {
	Apply(ctx context.Context, owner service.Owner, want policies.Set) (policies.Result, error)
}

// Shedder remembers which policies there was no room for. The zero value has tried none.
type Shedder struct {
	// Others are the policies of other owners.
	Others []policy.Policy
	// Step is called with each step of a search, which can take a while. Nil calls nothing.
	Step func()
	// Last is what was written last.
	Last []policy.Policy
	// Retry is set by Apply if it should be called again within [Hold]: policies have come or changed that were not tried, or some have gone, or there
	// may be room once what was there before has gone.
	Retry bool

	tried time.Time
	of    map[string]map[policy.Digest]string // by namespace, all of those that lost some: why, or nothing for those in force
	sum   uint64                              // of all that there was when some lost something
	held  map[policy.Digest]bool              // those that have come or changed since, and were not tried
	again bool                                // the last search found too much too
	// isolated are the namespaces of which all pods are isolated, as even the selectors of their NetworkPolicies are too large, and unknown those
	// of whose pods the labels are forgotten: why.
	isolated, unknown map[string]string
	together          bool // one policy isolates all of these
	vain              vain
}

// Apply makes the agent's policies on a node exactly those. While they have more rules than the datapath has room for, or ranges that overlap too
// much for this node, NetworkPolicies of the namespaces with the most lose their rules, of which lost tells, and full for each: the pods that they isolate are
// then reached by what other policies allow alone. Where it is the labels of pods that are too large, those of some namespaces are forgotten. On an error
// nothing has changed.
func (s *Shedder) Apply(ctx context.Context, to Policies, node string, want policies.Set) (full []kube.Warning, lost, err error) {
	t := s.begin(node, want)
	held := t.lost
	for {
		err := t.write(ctx, to)
		if err == nil {
			t.note()
			return slices.Concat(t.full, t.forgot, t.taken), t.lost, nil
		}
		if len(t.taken)+len(t.forgot) == 0 && s.vain.holds(t.want.Policies, err) {
			return slices.Concat(t.full, s.vain.told), held, err
		}
		lose := t.toLose(err)
		if lose.isEmpty() {
			return append(t.full, s.giveUp(t.want.Policies, append(t.forgot, t.taken...), err)...), held, err
		}
		t.forget(lose.labels, err)
		t.strip(lose.rules, err)
		t.isolate(lose, err)
	}
}

func noRoom(p *policy.Policy, text string) kube.Warning {
	return kube.Warning{Kind: kube.NetworkPolicies, Namespace: p.Namespace, Name: p.Name, Reason: "NoRoom", Text: text}
}

// renewed returns policies with those of some namespaces as they were before some were taken.
func renewed(policies, before []policy.Policy, namespaces []string) (out []policy.Policy) {
	of := make(map[string]bool, len(namespaces))
	for _, namespace := range namespaces {
		of[namespace] = true
	}
	for i := range policies {
		if !of[policies[i].Namespace] {
			out = append(out, policies[i])
		}
	}
	for i := range before {
		if of[before[i].Namespace] {
			out = append(out, before[i])
		}
	}
	return out
}

// namespacesOf returns the namespaces of NetworkPolicies that select pods of the node, and some more.
func namespacesOf(s policy.Snapshot, more ...map[string]string) (namespaces []string) {
	for _, some := range more {
		namespaces = slices.AppendSeq(namespaces, maps.Keys(some))
	}
	for i, here := range s.Here() {
		if p := &s.Policies[i]; here && p.Tier == policy.Namespaced {
			namespaces = append(namespaces, p.Namespace)
		}
	}
	slices.Sort(namespaces)
	return slices.Compact(namespaces)
}

// isolate has the NetworkPolicies of namespaces isolate all of their pods, and says of each why.
func isolate(want *policies.Set, why map[string]string, together bool) (full []kube.Warning) {
	for i := range want.Policies {
		p := &want.Policies[i]
		if text, ok := why[p.Namespace]; ok && p.Tier == policy.Namespaced {
			full = append(full, noRoom(p, "all NetworkPolicies of the namespace isolate all of its pods: "+text))
		}
	}
	isolateAll(want, why, together)
	return full
}

func isolateAll(want *policies.Set, why map[string]string, together bool) {
	do := want.Isolate
	if together {
		do = want.IsolateTogether
	}
	do(slices.Collect(maps.Keys(why))...)
}

// only returns the entries of some keys.
func only(all map[string]string, keys []string) map[string]string {
	out := make(map[string]string, len(keys))
	for _, key := range keys {
		out[key] = all[key]
	}
	return out
}

// merged returns a map with the entries of two.
func merged(a, b map[string]string) map[string]string {
	all := maps.Clone(b)
	maps.Copy(all, a)
	return all
}

// forget takes the labels of the pods of namespaces, and says of their NetworkPolicies why.
func forget(want *policies.Set, why map[string]string) (full []kube.Warning) {
	if len(why) == 0 {
		return nil
	}
	want.Forget(slices.Collect(maps.Keys(why))...)
	for i := range want.Policies {
		p := &want.Policies[i]
		if text, ok := why[p.Namespace]; ok && p.Tier == policy.Namespaced {
			full = append(full, noRoom(p, "it isolates all pods of its namespace, and no rules of it are in force: their labels are too large: "+text))
		}
	}
	return full
}
