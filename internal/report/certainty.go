// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"mustang/internal/result"
)

// certainty returns whether both ends shared a CPU, how well two measurements of one path agree, and which flag
// makes the run more certain.
func (st *suite) certainty() string {
	var parts []string
	if st.run.sharedCPU() {
		parts = append(parts, "Both ends shared one CPU.")
	}
	short := slices.ContainsFunc(st.workloads, func(t *workload) bool {
		without := func(c result.Comparison) bool { return c.CI95 == nil && c.RoundsDone() > 0 }
		return slices.ContainsFunc(t.comparisons, without)
	})
	if short {
		parts = append(parts, "The run was too short for 95\u00a0% intervals, so no difference is certain.")
	} else if agreed := st.agreed(); agreed != "" {
		parts = append(parts, "The same path measured twice agreed within "+agreed+".")
	}
	if more := st.run.longer(); more != "" && st.run.disturbances() == "" {
		parts = append(parts, "More certain: "+strings.ReplaceAll(more, " ", "\u00a0"))
	}
	return strings.Join(parts, " ")
}

// again is how far the widest interval of a path of a class that was measured twice (A/A) reaches from 1, as a share; 0
// if none was.
func (t *workload) again(class string) float64 {
	half := 0.0
	for _, c := range t.comparisons {
		if c.AA && c.CI95 != nil && c.Class == class {
			half = max(half, min(judge(c).reach(), 0.99))
		}
	}
	return half
}

// band is how far the band around 1 in charts reaches: the spread of the quietest class; 0 for none.
func (t *workload) band() float64 {
	for _, class := range result.Classes() {
		if half := t.again(class); half > 0 && half < widestKnown {
			return half
		}
	}
	return 0
}

// agreed returns how well two measurements of one path agree, empty if none was measured twice. If the widest figure
// is over 1.5 times the narrowest, it lists a figure for each workload and class of paths.
func (st *suite) agreed() string {
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
	if len(halves) > 0 && len(halves) >= len(st.workloads) && slices.Max(halves) <= 1.5*slices.Min(halves) {
		return percentUp(slices.Max(halves))
	}
	return strings.Join(parts, ", ")
}

var labName = regexp.MustCompile(`\blab bench-[0-9]+-[0-9]+: `)

// failures lists the rows without a figure by reason: failed rows first, since they need attention.
func (st *suite) failures() []Failure {
	total := countIDs(st.rows)
	var out []Failure
	for _, status := range []string{result.StatusFailed, result.StatusSkipped} {
		var by byReason[result.Row]
		for _, row := range st.rows {
			if row.Status == status {
				by.add(labName.ReplaceAllString(row.Reason, ""), row)
			}
		}
		for _, reason := range by.reasons {
			rows := by.items[reason]
			f := Failure{Status: status, Rows: nameRows(rows, total), Reason: reason}
			for _, row := range rows {
				found := strings.Join(row.Evidence.Findings, "; ")
				switch {
				case found == "":
				case len(rows) > 1:
					f.Reason += fmt.Sprintf(" [%s %s: %s]", row.ID, workloadLabel(row), found)
				default:
					f.Reason += " [" + found + "]"
				}
			}
			out = append(out, f)
		}
	}
	return out
}

// mostSkipped is the most names that a reason for skipping has.
const mostSkipped = 3

// notMeasured lists by reason what was not measured in any workload; empty if all was. Missing kernel features are
// one reason. A connection stands for its rows, and for the same with eBPF and by IPv6. A kind of cluster IP that
// measured connections lack stands for itself.
func (st *suite) notMeasured() string {
	known := map[string]bool{} // names that were measured, or are listed
	var all []*entry
	for _, t := range st.workloads {
		for _, e := range t.entries {
			if !e.repeat {
				all = append(all, e)
				known[e.name] = known[e.name] || e.Status != result.StatusSkipped
			}
		}
	}
	listed := map[string]bool{}
	var by byReason[string]
	for _, e := range all {
		name := e.name
		if known[name] && !listed[name] && e.Status == result.StatusSkipped && e.Target == result.TargetClusterIP {
			name = "cluster IP by " + viaName(e.Via)
		}
		if known[name] || listed[strings.TrimSuffix(strings.TrimSuffix(name, " (IPv6)"), "+eBPF")] {
			continue
		}
		known[name], listed[name] = true, true
		reason := e.Reason
		if strings.Contains(reason, "kernel") {
			reason = "missing in this kernel"
		}
		by.add(reason, name)
	}
	for i, reason := range by.reasons {
		by.reasons[i] = someOf(by.items[reason], mostSkipped) + ": " + reason
	}
	if len(by.reasons) == 0 {
		return ""
	}
	return "not measured: " + strings.Join(by.reasons, "; ")
}
