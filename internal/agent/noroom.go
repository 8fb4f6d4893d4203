// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"mustang/internal/agent/healthz"
	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/policies"
	"mustang/internal/kube"
	"mustang/internal/policy"
	"mustang/internal/service"
	"mustang/internal/service/manifest"
)

// holdStripped is how long NetworkPolicies of a namespace stay without rules that there was no room for, before all are tried again: to find out
// that there is none can take seconds.
const holdStripped = time.Minute

// stripped are the NetworkPolicies that there was no room for when all were tried last. The zero value has tried none.
type stripped struct {
	tried time.Time
	of    map[string]map[policy.Digest]string // by namespace, all of those that lost some: why, or nothing for those in force
	sum   uint64                              // of all that there was when some lost something
	held  map[policy.Digest]bool              // those that have come or changed since, and were not tried
	later bool                                // there are such, or some have gone, or there may be room once what was there before has gone
	again bool                                // the last search found too much too
	last  []policy.Policy                     // what was written last
	// others are the policies of other owners.
	others []policy.Policy
	// isolated are the namespaces of which all pods are isolated, as even the selectors of their NetworkPolicies are too large, and unknown those
	// of whose pods the labels are forgotten: why.
	isolated, unknown map[string]string
	together          bool // one policy isolates all of these
	vain              vain
}

// hold takes the rules of the policies that there was no room for a moment ago, and of those that have come or changed in their namespaces.
func (s *stripped) hold(want *policies.Set) (full []kube.Warning) {
	if s.later = false; time.Since(s.tried) >= holdStripped {
		s.of, s.isolated, s.unknown, s.together = nil, nil, nil, false
	}
	changed := len(s.of)+len(s.unknown) > 0 && s.sum != s.sumOf(want.Snapshot)
	s.held = map[policy.Digest]bool{}
	gone := map[policy.Digest]bool{}
	for _, known := range s.of {
		for id, why := range known {
			gone[id] = why != ""
		}
	}
	for i := range want.Policies {
		p := &want.Policies[i]
		known := s.of[p.Namespace]
		if known == nil || p.Tier != policy.Namespaced || p.Bulk() == 0 && s.isolated[p.Namespace] == "" {
			continue
		}
		id := p.Digest()
		why, tried := known[id]
		if delete(gone, id); !tried {
			why = "no rules of it are in force: there was no room for all of its namespace, which are tried again within a minute"
			s.held[id], s.later = true, true
		}
		if why != "" {
			full = append(full, noRoom(p, why))
			p.Strip()
		}
	}
	for _, hadNoRules := range gone {
		s.later = s.later || hadNoRules
	}
	isolateAll(want, s.isolated, s.together)
	before := want.Previous
	want.Previous = s.others
	full = append(full, forget(want, s.unknown)...)
	want.Previous = before
	s.later = s.later || changed && len(full)+len(s.unknown) > 0 // what takes the room may have gone
	return full
}

// sumOf tells apart what there may be room for.
func (s *stripped) sumOf(all policy.Snapshot) uint64 {
	sum := sumOf(all.Policies) + sumOf(s.others)
	for i := range all.Pods {
		id := all.Pods[i].Digest()
		sum += binary.LittleEndian.Uint64(id[:])
	}
	text, _ := json.Marshal([]any{all.Nodes, all.Namespaces})
	id := sha256.Sum256(text)
	return sum + binary.LittleEndian.Uint64(id[:])
}

// sumOf tells sets of policies apart.
func sumOf(all []policy.Policy) (sum uint64) {
	for i := range all {
		id := all[i].Digest()
		sum += binary.LittleEndian.Uint64(id[:])
	}
	return sum
}

// note remembers which of the policies that were tried have no rules in force: those taken now, and those that are held.
func (s *stripped) note(all policy.Snapshot, taken []kube.Warning, forgotten int) {
	if s.of == nil {
		s.tried, s.of = time.Now(), map[string]map[policy.Digest]string{}
	}
	if len(taken)+forgotten > 0 {
		s.later, s.again, s.sum = s.later || !s.again, true, s.sumOf(all)
	}
	tried := all.Policies
	why := map[[2]string]string{}
	for _, w := range taken {
		if why[[2]string{w.Namespace, w.Name}] = w.Text; s.of[w.Namespace] == nil {
			s.of[w.Namespace] = map[policy.Digest]string{}
		}
	}
	for i := range tried {
		p := &tried[i]
		if known := s.of[p.Namespace]; known != nil && p.Tier == policy.Namespaced {
			id := p.Digest()
			if text, ok := why[[2]string{p.Namespace, p.Name}]; ok {
				known[id] = text
			} else if _, ok := known[id]; !ok && !s.held[id] {
				known[id] = ""
			}
		}
	}
}

func noRoom(p *policy.Policy, text string) kube.Warning {
	return kube.Warning{Kind: kube.NetworkPolicies, Namespace: p.Namespace, Name: p.Name, Reason: "NoRoom", Text: text}
}

// apply makes the agent's policies exactly those. While they have more rules than the datapath has room for, or ranges that overlap too
// much for this node, NetworkPolicies of the namespaces with the most lose their rules, of which lost tells: the pods that they isolate are then
// reached by what other policies allow alone. Where it is the labels of pods that are too large, those of some namespaces are forgotten.
func (s *stripped) apply(ctx context.Context, to Policies, node string, want policies.Set) (full []kube.Warning, lost, err error) {
	var forgot, taken []kube.Warning
	isolated, unknown := map[string]string{}, map[string]string{}
	tried := want.Snapshot
	want.Policies = slices.Clone(want.Policies)
	if full = s.hold(&want); len(full) > 0 {
		want.Trim(node) // what their rules name is not kept for them
		lost = fmt.Errorf("%d NetworkPolicies have no rules in force, %s/%s with them: %s", len(full), full[0].Namespace, full[0].Name, full[0].Text)
	}
	if len(s.unknown) > 0 {
		lost = errors.Join(lost, fmt.Errorf("labels of the pods of %d namespaces are unknown: there was no room for all", len(s.unknown)))
	}
	want.Previous = nil
	held := lost
	for so := (search{}); ; {
		if steps, ok := to.(interface{ Step() }); ok {
			steps.Step()
		}
		here := want.Snapshot
		here.Node, here.Policies, here.Previous = node, append(slices.Clip(want.Policies), ofCluster(s.others)...), s.others
		err := here.CheckOverlaps()
		if err == nil {
			_, err = to.Apply(ctx, service.Agent, want)
		}
		if err == nil {
			s.note(tried, taken, len(unknown))
			s.last, s.vain = want.Policies, vain{}
			s.again = s.again && len(full)+len(forgot)+len(taken) > 0
			s.isolated, s.unknown = merged(s.isolated, isolated), merged(s.unknown, unknown)
			return slices.Concat(full, forgot, taken), lost, nil
		}
		if len(taken)+len(forgot) == 0 && s.vain.holds(want.Policies, err) {
			return slices.Concat(full, s.vain.told), held, err
		}
		lose := so.toLose(here, err)
		lose.labels = slices.DeleteFunc(lose.labels, func(namespace string) bool { return s.unknown[namespace]+unknown[namespace] != "" })
		if lose.isEmpty() {
			return append(full, s.giveUp(want.Policies, append(forgot, taken...), err)...), held, err
		}
		so.forgotten += len(lose.labels)
		for _, namespace := range lose.labels {
			lost = errors.Join(lost, fmt.Errorf("labels of the pods of namespace %s are unknown, and its NetworkPolicies allow nothing: %w", namespace, err))
			unknown[namespace] = err.Error()
		}
		want.Previous = s.others // which keep the labels that they name
		forgot = append(forgot, forget(&want, only(unknown, lose.labels))...)
		why := reason(err)
		if strip := lose.rules; len(strip) > 0 {
			first := want.Policies[strip[0]]
			lost = errors.Join(lost, fmt.Errorf("%d NetworkPolicies have no rules in force, %s/%s with them: %w", len(strip), first.Namespace, first.Name, err))
			for _, i := range strip {
				taken = append(taken, noRoom(&want.Policies[i], "no rules of it are in force: "+why))
				want.Policies[i].Strip()
			}
			if isFull := (*objects.FullError)(nil); errors.As(err, &isFull) && isFull.Map == policies.Documents {
				want.Trim(node) // labels that they name take room
			}
		}
		want.Previous = nil
		if lose.all {
			here.Policies = tried.Policies // whatever is together so far
			lose.policy = namespacesOf(here, s.isolated, isolated, s.unknown, unknown)
			want.Policies = renewed(want.Policies, tried.Policies, lose.policy)
		}
		for _, namespace := range lose.policy {
			isolated[namespace] = why
		}
		if n := len(lose.policy); n > 0 {
			lost = errors.Join(lost, fmt.Errorf("NetworkPolicies of %d namespaces, %s with them, isolate all of their pods: %w", n, lose.policy[0], err))
		}
		taken = slices.DeleteFunc(taken, func(w kube.Warning) bool { return slices.Contains(lose.policy, w.Namespace) })
		taken = append(taken, isolate(&want, only(isolated, lose.policy), lose.all)...)
		s.together = s.together || lose.all
	}
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

// inSteps tells with each call that a round goes on.
type inSteps struct {
	Policies
	*healthz.State
}

// Apply is that of Policies.
func (s inSteps) Apply(ctx context.Context, owner service.Owner, want policies.Set) (policies.Result, error) {
	s.Step()
	return s.Policies.Apply(ctx, owner, want)
}

// applyPolicies writes the policies of a version, and notes which have no rules in force, of which lost tells.
func (a *Agent) applyPolicies(ctx context.Context, rules policies.Set, version uint64) (lost, err error) {
	a.mu.Lock()
	a.stripped.others = a.policies.others
	a.mu.Unlock()
	full, lost, err := a.stripped.apply(ctx, inSteps{a.Policies, a.State}, a.Node, rules)
	if a.stripped.later {
		if a.again != nil {
			a.again.Stop()
		}
		a.again = time.AfterFunc(holdStripped, a.changePolicies)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.policies.failure = err; err == nil {
		a.policies.written, a.policies.last = version, a.stripped.last
	}
	a.proceed()
	a.noRoom = map[manifest.Name]string{}
	for _, w := range full {
		if w.Kind != kube.NetworkPolicies {
			a.warnings.add(w)
			continue
		}
		a.noRoom[manifest.Name{Namespace: w.Namespace, Name: w.Name}] = w.Text
		a.warnings.add(w)
	}
	return lost, err
}
