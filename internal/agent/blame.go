// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"errors"
	"math"
	"slices"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/policies"
	"mustang/internal/policy"
)

// blame is who has lost something so far.
type blame struct {
	namespace string // whose NetworkPolicies lose their rules by halves, before another's do
	halves    int
	forgotten int // namespaces
}

// toStrip returns the NetworkPolicies whose rules are too many by an error, or the namespaces whose pods have labels that are too large. The longer it
// takes, the more: services wait meanwhile.
func (b *blame) toStrip(here policy.Snapshot, err error) (strip []int, unknown []string) {
	var none *objects.FullError
	var over *policy.OverlapError
	var work *policy.WorkError
	namespaces := []string{b.namespace}
	isFull := errors.As(err, &none)
	switch {
	case !isFull && !errors.As(err, &over) && !errors.As(err, &work):
		return nil, nil
	case isFull && none.Map == policies.Documents:
		return largest(here, int(none.Size)*policies.DocumentPiece, max(1, b.forgotten))
	case b.namespace != "" && len(ofNamespaces(here, namespaces)) > 0:
	case over != nil:
		namespaces = []string{here.Overlapping()}
	case work != nil:
		namespaces = work.TooMany
	default:
		namespaces = fullest(here, none)
	}
	if strip = ofNamespaces(here, namespaces); len(namespaces) == 1 {
		if namespaces[0] != b.namespace {
			b.namespace, b.halves = namespaces[0], 0
		}
		if b.halves++; b.halves <= mostHalves {
			strip = heaviest(here.Policies, strip)
		}
	}
	if isFull && len(strip) == 0 {
		strip = heaviest(here.Policies, largestOf(here.Policies))
	}
	return strip, nil
}

// mostHalves is how often the NetworkPolicies of one namespace lose their rules by halves.
const mostHalves = 2

// fullest returns the namespaces whose NetworkPolicies have the most rows of a map on the node.
func fullest(s policy.Snapshot, full *objects.FullError) []string {
	room := int(full.Size) / 8 * 7
	if full.Map != "verdicts" && full.Map != "policy_ports" {
		room = math.MaxInt // each namespace counts the pods
	}
	return s.Fullest(func(rows policy.Rows) int {
		switch full.Map {
		case "policy_ports":
			return len(rows.Ports)
		case "verdicts":
			return len(rows.Verdicts)
		case "identities":
			return len(rows.Addresses)
		}
		return len(rows.Numbers)
	}, full.Map == "verdicts", room)
}

// ofNamespaces returns the NetworkPolicies of namespaces that have rules and select pods of the node.
func ofNamespaces(s policy.Snapshot, namespaces []string) (out []int) {
	for i, here := range s.Here() {
		if p := &s.Policies[i]; here && p.Tier == policy.Namespaced && p.Bulk() > 0 && slices.Contains(namespaces, p.Namespace) {
			out = append(out, i)
		}
	}
	return out
}

// largest returns what takes most of the documents, of so many bytes: NetworkPolicies of a namespace, or so many namespaces whose pods have the largest
// labels. Nobody is to blame for many pods: policies of a namespace, and labels of all, that take less than a sixteenth are none's fault.
func largest(s policy.Snapshot, size, most int) (strip []int, unknown []string) {
	strip = largestOf(s.Policies)
	policies, labels, labelled := 0, s.Labelled(), 0
	for _, i := range strip {
		policies += s.Policies[i].Bulk()
	}
	sum := 0
	for namespace, n := range labels {
		if n > 0 {
			unknown = append(unknown, namespace)
		}
		sum, labelled = sum+n, max(labelled, n)
	}
	switch {
	case policies >= size/16 && policies >= labelled:
		return heaviest(s.Policies, strip), nil
	case sum < size/16:
		return nil, nil
	}
	slices.SortFunc(unknown, func(a, b string) int { return cmp.Or(cmp.Compare(labels[b], labels[a]), cmp.Compare(a, b)) })
	return nil, unknown[:min(len(unknown), most)]
}

// largestOf returns the NetworkPolicies with rules of the namespace whose rules are largest.
func largestOf(all []policy.Policy) (of []int) {
	sums, most := map[string]int{}, ""
	for i := range all {
		if p := &all[i]; p.Tier == policy.Namespaced {
			sums[p.Namespace] += p.Bulk()
			if sums[p.Namespace] > sums[most] || sums[p.Namespace] == sums[most] && p.Namespace < most { // each time the same
				most = p.Namespace
			}
		}
	}
	for i := range all {
		if p := &all[i]; p.Tier == policy.Namespaced && p.Namespace == most && p.Bulk() > 0 {
			of = append(of, i)
		}
	}
	return of
}

// heaviest returns, of some policies, the largest ones: those that have half of all.
func heaviest(all []policy.Policy, of []int) []int {
	sum := 0
	for _, i := range of {
		sum += all[i].Bulk()
	}
	slices.SortStableFunc(of, func(a, b int) int { return cmp.Compare(all[b].Bulk(), all[a].Bulk()) })
	n := 0
	for had := 0; 2*had < sum; n++ {
		had += all[of[n]].Bulk()
	}
	return of[:n]
}
