// SPDX-License-Identifier: Apache-2.0

package report

import (
	"slices"
	"strings"

	"mustang/internal/result"
)

// again is how far the widest interval of a path of a class that was measured twice (A/A) reaches from 1, as a share; 0
// if none was.
func (t *workloadTable) again(class string) float64 {
	half := 0.0
	for _, c := range t.comparisons {
		if c.AA && c.CI95 != nil && c.Class == class {
			half = max(half, min(judge(c).reach(), 0.99))
		}
	}
	return half
}

// band is how far the band around 1 in charts reaches: the spread of the quietest class; 0 for none.
func (t *workloadTable) band() float64 {
	for _, class := range result.Classes() {
		if half := t.again(class); half > 0 && half < widestKnown {
			return half
		}
	}
	return 0
}

// unseen tells how well two measurements of one path agree. If the widest figure is over 1.5 times the narrowest, it
// lists a figure for each workload and class of paths.
func (st *suiteTables) unseen() string {
	among := map[string]string{
		result.ClassUserSpace: " through user space", result.ClassTwoCPUs: " on two CPUs",
		result.ClassGuests: " between virtual machines",
	}
	var halves []float64
	var parts []string
	for _, t := range st.workloads {
		for _, class := range result.Classes() {
			if half := t.again(class); half > 0 {
				halves, parts = append(halves, half), append(parts, percentUp(half)+" ("+t.plural()+among[class]+")")
			}
		}
	}
	switch {
	case len(halves) == 0:
		return ""
	case len(halves) >= len(st.workloads) && slices.Max(halves) <= 1.5*slices.Min(halves):
		return "The same path measured twice agreed within " + percentUp(slices.Max(halves)) + "."
	}
	return "The same path measured twice agreed within " + strings.Join(parts, ", ") + "."
}
