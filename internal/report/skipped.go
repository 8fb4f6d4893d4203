// SPDX-License-Identifier: Apache-2.0

package report

import (
	"slices"
	"strings"

	"mustang/internal/result"
)

// Skipped are rows that were not measured for one reason.
type Skipped struct {
	Names  []string
	Why    string
	Kernel bool // whether the kernel lacks what they need
}

// unmeasured lists the rows that were not measured in any workload. What the kernel lacks is one
// reason. A connection stands for its rows, and for the same with eBPF; a kind of cluster IP that
// measured connections lack stands for itself.
func (st *suiteTables) unmeasured() []Skipped {
	known := map[string]bool{} // names that were measured, or are listed
	var all []*entry
	for _, t := range st.workloads {
		for _, e := range t.withoutRepeats() {
			all = append(all, e)
			known[e.name] = known[e.name] || e.Status != result.StatusSkipped
		}
	}
	listed := map[string]bool{}
	var out []Skipped
	for _, e := range all {
		name := e.name
		if known[name] && !listed[name] && e.Status == result.StatusSkipped && e.Target == result.TargetClusterIP {
			name = "cluster IP by " + viaName(e.Via)
		}
		if known[name] || listed[strings.TrimSuffix(name, " + eBPF")] {
			continue
		}
		known[name], listed[name] = true, true
		why := clean(e.Reason)
		if strings.Contains(why, "kernel") {
			why = ""
		}
		i := slices.IndexFunc(out, func(s Skipped) bool { return s.Why == why })
		if i < 0 {
			i = len(out)
			out = append(out, Skipped{Why: why})
		}
		out[i].Names = append(out[i].Names, shortName(name))
	}
	for i, s := range out {
		if s.Why == "" {
			out[i].Kernel = true
			out[i].Why = "this kernel lacks " + verb(len(s.Names), "it", "them")
		}
	}
	return out
}
