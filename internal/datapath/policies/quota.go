// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"maps"
	"slices"

	"mustang/internal/policy"
)

// checkQuota returns a *policy.QuotaError if NetworkPolicies of some namespaces make more than one part of several of the room that a map has. A plan
// that is done tells that none is, where all rows together are few.
func (p Policies) checkQuota(d documents, want Set, w *writer, done bool) error {
	parts := want.Quota
	if over := p.checkText(want.Policies, parts); len(over) > 0 {
		return &policy.QuotaError{Over: over}
	}
	t := p.tables()
	rows := func(size uint32, most int) int { return min(most, int(size)) / parts }
	quota := policy.Quota{
		Verdicts: rows(t.verdicts.Size(), mostVerdicts),
		Ports:    (min(mostRows, int(t.ports.Size())) - allListeners) / parts,
		Ranges:   rows(t.identities.Size(), mostRows),
		Numbers:  rows(t.numbers.Size(), mostRows),
		Overlaps: policy.MostOverlaps / parts, Work: policy.MostWork / parts,
	}
	if done && w.compiler.Within(quota) {
		return nil
	}
	s, err := p.snapshot(d)
	if err != nil {
		return err
	}
	return s.CheckQuota(quota)
}

// checkText returns the namespaces whose NetworkPolicies take too much of the documents, whichever nodes their pods are on.
func (p Policies) checkText(want []policy.Policy, parts int) (over []*policy.LimitError) {
	limit := p.mostPieces() * pieceSize / parts
	of, size := map[string][]policy.Policy{}, map[string]int{}
	for i := range want {
		if each := &want[i]; each.Tier == policy.Namespaced {
			of[each.Namespace] = append(of[each.Namespace], *each)
			size[each.Namespace] += each.Size()
		}
	}
	for _, namespace := range slices.Sorted(maps.Keys(of)) {
		if size[namespace] <= limit { // what is stored is compressed
			continue
		}
		if n, err := stored(of[namespace]); err == nil && n > limit {
			over = append(over, &policy.LimitError{Namespace: namespace, What: "bytes of policies", Number: n, Limit: limit})
		}
	}
	return over
}
