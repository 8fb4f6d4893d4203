// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"mustang/internal/report/format"
	"mustang/internal/result"
)

// Skipped are rows that were not measured for one reason.
type Skipped struct {
	Names  []string
	Why    string
	Kernel bool // whether the kernel lacks what they need
}

// unmeasured lists the rows that were not measured in any workload. What the kernel lacks is one
// reason. A connection stands for its rows, and for the same with eBPF and by IPv6; a kind of cluster IP that
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
			name = "cluster IP by " + format.Via(e.Via)
		}
		if known[name] || listed[strings.TrimSuffix(strings.TrimSuffix(name, " (IPv6)"), "+eBPF")] {
			continue
		}
		known[name], listed[name] = true, true
		why := format.Clean(e.Reason)
		if strings.Contains(why, "kernel") {
			why = ""
		}
		i := slices.IndexFunc(out, func(s Skipped) bool { return s.Why == why })
		if i < 0 {
			i = len(out)
			out = append(out, Skipped{Why: why})
		}
		out[i].Names = append(out[i].Names, name)
	}
	for i, s := range out {
		if s.Why == "" {
			out[i].Kernel = true
			out[i].Why = "this kernel lacks " + format.Verb(len(s.Names), "it", "them")
		}
	}
	return out
}

// NotMeasured lists what was not measured with the reasons on one line: as many names as fit in a
// width, else the reasons alone. A width of 0 has room for all. It is empty if all was measured.
func (s Suite) NotMeasured(width int) string {
	if len(s.Brief.Skipped) == 0 {
		return ""
	}
	total, most := 0, 0
	for _, s := range s.Brief.Skipped {
		total, most = total+len(s.Names), max(most, len(s.Names))
	}
	for n := most; n >= -1; n-- {
		var parts []string
		for _, s := range s.Brief.Skipped {
			switch {
			case n >= 0:
				parts = append(parts, format.SomeOf(s.Names, n)+": "+s.Why)
			case s.Kernel:
				parts = append(parts, "this kernel lacks "+format.SomeOf(s.Names, 0))
			default:
				parts = append(parts, s.Why)
			}
		}
		if line := "not measured: " + strings.Join(parts, "; "); width == 0 || utf8.RuneCountInString(line) <= width {
			return line
		}
	}
	return fmt.Sprintf("not measured: %d paths; \"mustang bench --list %s\" says why", total, s.Name)
}
