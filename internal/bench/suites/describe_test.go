// SPDX-License-Identifier: Apache-2.0

package suites

import (
	"slices"
	"strings"
	"testing"

	"mustang/internal/result"
	"mustang/internal/testkit"
)

// described returns the description of a suite whose rows all have a figure.
func described(t *testing.T, name string, change func(*result.Row)) (result.Suite, []result.Row) {
	t.Helper()
	found, err := Lookup(name)
	testkit.Succeed(t, err)
	suite := found[0]
	rows := suite.Rows()
	for i := range rows {
		rows[i].Status, rows[i].Unit, rows[i].Samples, rows[i].Median = result.StatusOK, result.UnitGbit, []float64{1}, 1
		change(&rows[i])
		rows[i].Label = suite.Label(rows[i])
	}
	return suite.Describe(rows, false), rows
}

// TestDescriptionsNameExistingRows checks that each suite has a description that the result
// file takes, and that it names no row that the suite lacks.
func TestDescriptionsNameExistingRows(t *testing.T) {
	for _, suite := range List() {
		d, rows := described(t, suite.Name, func(*result.Row) {})
		f := result.File{Schema: result.Schema, Suites: []result.Suite{d}, Rows: rows}
		err := f.Validate()
		testkit.Check(t, err == nil, "%s: %v", suite.Name, err)
		if counted := suite.Describe(nil, true); counted.Question == d.Question || counted.Question == suite.Doc {
			t.Errorf("%s: question of counted instructions %q", suite.Name, counted.Question)
		}
		var named []string
		if d.Reference != "" {
			named = append(named, d.Reference)
		}
		for _, group := range d.Groups {
			named = append(named, group.Rows...)
		}
		for _, series := range d.Series {
			named = append(named, series.Rows...)
		}
		for _, st := range d.Statements {
			for _, p := range st.Pairs {
				named = append(named, p.Numerator, p.Denominator)
			}
		}
		for _, id := range named {
			testkit.Check(t, slices.ContainsFunc(rows, func(r result.Row) bool { return r.ID == id }),
				"%s: the description names %q, which is no row", suite.Name, id)
		}
	}
}

// TestSwitchingNamesDatapath checks that reports do not mix up the figures of Open vSwitch's slow datapath and of
// its kernel datapath.
func TestSwitchingNamesDatapath(t *testing.T) {
	for _, tc := range []struct {
		word  string
		rows  string
		noted bool
	}{
		{UserSpace, "/ovs", true},
		{UserSpace, "/ovs/veth", true},
		{wordKernel, "/ovs", false},
	} {
		d, _ := described(t, "switching", func(r *result.Row) {
			if strings.Contains(r.ID, tc.rows) {
				r.Variant = strings.TrimSpace(tc.word + " " + r.Variant)
			}
		})
		testkit.Check(t, (len(d.Notes) > 0) == tc.noted, "%s in %s: notes %q", tc.word, tc.rows, d.Notes)
	}
}

// TestRowPresentation checks the labels of rows, and the marks of rows that do not connect pods.
func TestRowPresentation(t *testing.T) {
	for _, tc := range []struct {
		suite, id, variant string // variant of the measured row, "" for the path's
		want               result.Row
	}{
		{"switching", "vxlan/ovs/vm", "kernel tcg", result.Row{Label: "vxlan/ovs/vm (tcg)"}},
		{"switching", "vxlan/ovs/veth", "tcgx", result.Row{}},
		{"latency", "host/again", "", result.Row{Baseline: true, Repeats: "host"}},
		{"docker", "host-mode", "", result.Row{}},
		{"interfaces", "loopback", "", result.Row{Baseline: true}},
		{"pod-links", "host-to-pod", "", result.Row{Baseline: true, Label: "host to pod"}},
		{"pod-links", "ovs-veth+ebpf/pod-ip", "kernel", result.Row{Label: "ovs-veth (kernel)+eBPF"}},
		{"pod-links", "ovs-internal/pod-ip", "user-space", result.Row{Label: "ovs-internal (user-space)"}},
		{"pod-links", "bridge-call-on/pod-ip", "", result.Row{}},
	} {
		found, err := Lookup(tc.suite)
		testkit.Succeed(t, err)
		rows := found[0].Rows()
		i := slices.IndexFunc(rows, func(r result.Row) bool { return r.ID == tc.id })
		if i < 0 {
			t.Errorf("%s: no row %s", tc.suite, tc.id)
			continue
		}
		r := rows[i]
		if tc.variant != "" {
			r.Variant = tc.variant
		}
		r.Label = found[0].Label(r)
		testkit.Check(t, r.Label == tc.want.Label && r.Baseline == tc.want.Baseline && r.Repeats == tc.want.Repeats,
			"%s: label %q, baseline %t, repeats %q", r.ID, r.Label, r.Baseline, r.Repeats)
	}
}
