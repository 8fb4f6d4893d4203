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

// classes returns the classes with paths that were measured twice, the quietest first; at least one.
func (t *workloadTable) classes() []string {
	out := slices.DeleteFunc(result.Classes(), func(class string) bool { return t.again(class) == 0 })
	if len(out) == 0 {
		return []string{""}
	}
	return out
}

// widestBand is the spread from which on it is no band in a picture.
const widestBand = 0.5

// band is how far the band around one reaches: the spread of the quietest class; 0 for none.
func (t *workloadTable) band() float64 {
	if half := t.again(t.classes()[0]); half < widestBand {
		return half
	}
	return 0
}

// among names the paths of a class, empty for all.
func among(class string) string {
	switch class {
	case result.ClassKernel:
		return " in the kernel"
	case result.ClassUserSpace:
		return " through user space"
	case result.ClassTwoCPUs:
		return " on two CPUs"
	case result.ClassGuests:
		return " between virtual machines"
	}
	return ""
}

// unseen tells how well two measurements of one path agree. If the widest figure is over 1.5 times the narrowest, it
// lists a figure for each workload and class of paths.
func (st *suiteTables) unseen() string {
	var halves []float64
	var parts []string
	for _, t := range st.workloads {
		classes := t.classes()
		for _, class := range classes {
			half := t.again(class)
			if half == 0 || class == result.ClassUserSpace && !st.list() {
				continue
			}
			where := ""
			if len(classes) > 1 && (st.list() || class != result.ClassKernel) {
				where = among(class)
			}
			halves, parts = append(halves, half), append(parts, percentUp(half)+" ("+t.plural()+where+")")
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
