// SPDX-License-Identifier: Apache-2.0

package report

import (
	"slices"
	"strings"

	"mustang/internal/result"
)

// mostSkipped is the most names that a reason for skipping has.
const mostSkipped = 3

// notMeasured lists what was not measured in any workload, by reason; empty if all was. What the kernel lacks is one
// reason. A connection stands for its rows, and for the same with eBPF and by IPv6; a kind of cluster IP that measured
// connections lack stands for itself.
func (st *suiteTables) notMeasured() string {
	known := map[string]bool{} // names that were measured, or are listed
	var all []*entry
	for _, t := range st.workloads {
		for _, e := range t.withoutRepeats() {
			all = append(all, e)
			known[e.name] = known[e.name] || e.Status != result.StatusSkipped
		}
	}
	listed, names := map[string]bool{}, map[string][]string{}
	var reasons []string
	for _, e := range all {
		name := e.name
		if known[name] && !listed[name] && e.Status == result.StatusSkipped && e.Target == result.TargetClusterIP {
			name = "cluster IP by " + viaName(e.Via)
		}
		if known[name] || listed[strings.TrimSuffix(strings.TrimSuffix(name, " (IPv6)"), "+eBPF")] {
			continue
		}
		known[name], listed[name] = true, true
		why := clean(e.Reason)
		if strings.Contains(why, "kernel") {
			why = "missing in this kernel"
		}
		if !slices.Contains(reasons, why) {
			reasons = append(reasons, why)
		}
		names[why] = append(names[why], name)
	}
	if len(reasons) == 0 {
		return ""
	}
	for i, why := range reasons {
		reasons[i] = someOf(names[why], mostSkipped) + ": " + why
	}
	return "not measured: " + strings.Join(reasons, "; ")
}
