// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/policies"
	"mustang/internal/kube"
	"mustang/internal/policy"
	"mustang/internal/service"
)

// holdStripped is how long NetworkPolicies of a namespace stay without rules that there was no room for, before all are tried again: to find out
// that there is none can take seconds.
const holdStripped = time.Minute

// stripped are the NetworkPolicies that there was no room for when all were tried last. The zero value has tried none.
type stripped struct {
	tried time.Time
	of    map[string]map[policy.Digest]string // by namespace, all of those that lost some: why, or nothing for those in force
	held  map[policy.Digest]bool              // those that have come or changed since, and were not tried
	later bool                                // there are such, or some have gone
}

// hold takes the rules of the policies that there was no room for a moment ago, and of those that have come or changed in their namespaces.
func (s *stripped) hold(want *policies.Set) (full []kube.Warning) {
	if s.later = false; time.Since(s.tried) >= holdStripped {
		s.of = nil
	}
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
		if known == nil || p.Tier != policy.Namespaced || p.Bulk() == 0 {
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
	return full
}

// note remembers which of the policies that were tried have no rules in force: those taken now, and those that are held.
func (s *stripped) note(tried []policy.Policy, taken []kube.Warning) {
	if s.of == nil {
		s.tried, s.of = time.Now(), map[string]map[policy.Digest]string{}
	}
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
// much for this node, NetworkPolicies of the namespace with the most lose their rules, of which lost tells: the pods that they isolate are then
// reached by what other policies allow alone. Where it is the labels of pods that are too large, those of one namespace are forgotten.
func (s *stripped) apply(ctx context.Context, to Policies, node string, want policies.Set) (full []kube.Warning, lost, err error) {
	var taken []kube.Warning
	all := want.Policies
	want.Policies = slices.Clone(want.Policies)
	if full = s.hold(&want); len(full) > 0 {
		lost = fmt.Errorf("%d NetworkPolicies have no rules in force, %s/%s with them: %s", len(full), full[0].Namespace, full[0].Name, full[0].Text)
	}
	for {
		here := want.Snapshot
		here.Node = node
		err := here.CheckOverlaps()
		if err == nil {
			_, err = to.Apply(ctx, service.Agent, want)
		}
		strip := toStrip(here, err)
		var none *objects.FullError
		if len(strip) == 0 && errors.As(err, &none) && none.Map == policies.Documents {
			if namespace := labelled(want.Snapshot, leastToStrip(none)); namespace != "" {
				lost = errors.Join(lost, fmt.Errorf("labels of the pods of namespace %s are unknown, and its NetworkPolicies allow nothing: %w", namespace, err))
				full = append(full, forget(&want, namespace, err)...)
				continue
			}
		}
		if len(strip) == 0 {
			if err == nil {
				s.note(all, taken)
			}
			return append(full, taken...), lost, err
		}
		first := want.Policies[strip[0]]
		lost = errors.Join(lost, fmt.Errorf("NetworkPolicies of namespace %s have no rules in force, %d with %s: %w", first.Namespace, len(strip), first.Name, err))
		for _, i := range strip {
			taken = append(taken, noRoom(&want.Policies[i], "no rules of it are in force: "+err.Error()))
			want.Policies[i].Strip()
		}
	}
}

// toStrip returns the NetworkPolicies whose rules are too many by an error.
func toStrip(here policy.Snapshot, err error) (strip []int) {
	var none *objects.FullError
	var over *policy.OverlapError
	var work *policy.WorkError
	switch {
	case errors.As(err, &over):
		return overlapping(here)
	case errors.As(err, &work):
		return heaviestHere(here, work.Most.Namespace)
	case errors.As(err, &none):
		if none.Map != policies.Documents {
			strip = heaviestHere(here, fullest(here, none.Map))
		}
		if len(strip) == 0 {
			strip = heaviest(here.Policies, leastToStrip(none))
		}
	}
	return strip
}

// labelled returns the namespace whose pods' labels are largest, or none if these are smaller than least, in bytes.
func labelled(s policy.Snapshot, least int) (most string) {
	sizes := s.Labelled()
	for namespace, size := range sizes {
		if size >= least && (most == "" || size > sizes[most] || size == sizes[most] && namespace < most) {
			most = namespace
		}
	}
	return most
}

// forget takes the labels of a namespace's pods, and says so of its NetworkPolicies.
func forget(want *policies.Set, namespace string, why error) (full []kube.Warning) {
	want.Forget(namespace)
	for i := range want.Policies {
		if p := &want.Policies[i]; p.Tier == policy.Namespaced && p.Namespace == namespace {
			full = append(full, kube.Warning{
				Kind: kube.NetworkPolicies, Namespace: namespace, Name: p.Name, Reason: "NoRoom",
				Text: "it isolates all pods of its namespace, and no rules of it are in force: their labels are too large: " + why.Error(),
			})
		}
	}
	return full
}

// overlapping returns, of the NetworkPolicies that select pods of the node, the largest of the namespace whose own ranges overlap most.
func overlapping(s policy.Snapshot) []int {
	of, at := map[string][]policy.Policy{}, map[string][]int{}
	for i, here := range s.Here() {
		if p := s.Policies[i]; here && p.Tier == policy.Namespaced && p.Bulk() > 0 {
			of[p.Namespace], at[p.Namespace] = append(of[p.Namespace], p), append(at[p.Namespace], i)
		}
	}
	most, overlaps := "", 0
	for namespace, all := range of {
		own := policy.Snapshot{Policies: all}
		if n := own.Overlaps(); n > overlaps || n == overlaps && namespace < most {
			most, overlaps = namespace, n
		}
	}
	var out []int
	for _, i := range heaviest(of[most], 1) {
		out = append(out, at[most][i])
	}
	return out
}

// fullest returns the namespace whose NetworkPolicies have the most rows of a map on the node.
func fullest(s policy.Snapshot, table string) string {
	return s.Fullest(func(rows policy.Rows) int {
		switch table {
		case "policy_ports":
			return len(rows.Ports)
		case "verdicts":
			return len(rows.Verdicts)
		case "identities":
			return len(rows.Addresses)
		}
		return len(rows.Numbers)
	}, table == "verdicts").Namespace
}

// heaviestHere returns, of the NetworkPolicies of a namespace that select pods of the node, the largest.
func heaviestHere(s policy.Snapshot, namespace string) (out []int) {
	var of []policy.Policy
	var at []int
	for i, here := range s.Here() {
		if p := s.Policies[i]; here && p.Tier == policy.Namespaced && p.Namespace == namespace {
			of, at = append(of, p), append(at, i)
		}
	}
	for _, i := range heaviest(of, 1) {
		out = append(out, at[i])
	}
	return out
}

// leastToStrip is how many bytes of rules a namespace has at least that has filled a map. Documents are of pods too: what they have no room
// for is no policy's fault unless those of one namespace take a sixteenth.
func leastToStrip(full *objects.FullError) int {
	if full.Map == policies.Documents {
		return int(full.Size) * policies.DocumentPiece / 16
	}
	return 1
}

// heaviest returns the largest NetworkPolicies of the namespace whose rules are largest: those that have half of them. It returns none if
// these are smaller than least, in bytes.
func heaviest(all []policy.Policy, least int) (out []int) {
	sizes, sums := make([]int, len(all)), map[string]int{}
	most := ""
	for i := range all {
		if p := &all[i]; p.Tier == policy.Namespaced {
			sizes[i] = p.Bulk()
			sums[p.Namespace] += sizes[i]
			if sums[p.Namespace] > sums[most] || sums[p.Namespace] == sums[most] && p.Namespace < most { // each time the same
				most = p.Namespace
			}
		}
	}
	if sums[most] < least {
		return nil
	}
	for i := range all {
		if sizes[i] > 0 && all[i].Namespace == most {
			out = append(out, i)
		}
	}
	slices.SortStableFunc(out, func(a, b int) int { return cmp.Compare(sizes[b], sizes[a]) })
	n := 0
	for sum := 0; 2*sum < sums[most]; n++ {
		sum += sizes[out[n]]
	}
	return out[:n]
}
