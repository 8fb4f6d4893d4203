// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"slices"
	"testing"

	"mustang/internal/bench/suites"
	"mustang/internal/lab"
	"mustang/internal/result"
	"mustang/internal/testkit"
)

// checkTraces checks that the steps of some rows are in the file, for both directions.
func checkTraces(t *testing.T, file result.File) {
	t.Helper()
	traced := map[string]bool{}
	for _, tr := range file.Run.Traces {
		testkit.Check(t, !traced[tr.ID], "%s was traced twice", tr.ID)
		traced[tr.ID] = true
		seen := map[string]bool{}
		for _, s := range tr.Steps {
			seen[s.Direction+" "+s.Kind] = true
		}
		testkit.Check(t, seen["request send"] && seen["reply send"] && !(tr.UntracedNS <= 0),
			"%s: %d steps, %g ns without tracing", tr.ID, len(tr.Steps), tr.UntracedNS)
	}
	testkit.Check(t, len(traced) != 0, "no row was traced")
}

// TestTracedRows checks that each path is traced once, pod IPs first and what connects none last.
func TestTracedRows(t *testing.T) {
	var rows []*measuredRow
	for _, spec := range (Options{Suites: lookup(t, suites.Default)}).rowSpecs() {
		rows = append(rows, newRow(spec))
	}
	var got []string
	cluster := false
	for _, row := range tracedRows(rows) {
		p := row.spec.path
		if slices.Contains(got, p.ID) || p.Repeats != "" || p.Lab.BigTCP || cluster && p.Target != result.TargetClusterIP &&
			!p.Baseline {
			t.Errorf("%s after %v", p.ID, got)
		}
		got, cluster = append(got, p.ID), cluster || p.Target == result.TargetClusterIP
	}
	testkit.Check(t, slices.Contains(got, "veth/pod-ip") && cluster, "traced rows: %v", got)
	rows = nil
	for _, spec := range (Options{Suites: append(lookup(t, "docker"), lookup(t, "cni")...)}).rowSpecs() {
		rows = append(rows, newRow(spec))
	}
	for _, row := range tracedRows(rows) {
		if p := row.spec.path; p.Lab.Topology == lab.TopologyDocker || p.Plugin != nil {
			t.Errorf("%s %s would be traced", row.row.Suite, p.ID)
		}
	}
}
