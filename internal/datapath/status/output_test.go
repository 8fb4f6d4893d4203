// SPDX-License-Identifier: Apache-2.0

package status_test

import (
	"strings"
	"testing"

	"mustang/internal/datapath/status"
)

// TestWriteTable says what is loaded, what is missing and how to get it, and leaves out what is as it should be.
func TestWriteTable(t *testing.T) {
	for name, test := range map[string]struct {
		report status.Report
		want   string
	}{
		"nothing": {status.Report{Root: "/bpf"}, "ok\n/bpf: nothing is loaded\n"},
		"drops": {
			status.Report{Root: "/bpf", Layouts: []string{"v7"}, Drops: []status.Drop{{Name: "drop_ttl"},
				{Name: "drop_rewrite", Packets: 3, Meaning: "why"}}},
			"ok\n/bpf: maps of layout v7\n\nDROPPED       PACKETS  MEANING\ndrop_rewrite  3        why\n",
		},
		"features": {
			status.Report{Root: "/bpf", Layouts: []string{"v6", "v7"}, Features: []status.Feature{
				{Name: "tcx"}, {Name: "XDP", Needs: "Linux 4.8", Missing: "not here"}, {Name: "netkit programs",
					Missing: "not asked for"},
			}, Findings: []status.Finding{{What: "a map is full", Do: "a larger one"}}},
			"1 problem:\n  a map is full (what helps: a larger one)\n/bpf: maps of layout v6, v7\n" +
				"\nMISSING FEATURE  NEEDS      REASON\nXDP              Linux 4.8  not here\n",
		},
		"problems": {
			status.Report{Root: "/bpf", Findings: []status.Finding{{What: "a", Do: "b"}, {What: "c", Do: "d"}}},
			"2 problems:\n  a (what helps: b)\n  c (what helps: d)\n/bpf: nothing is loaded\n",
		},
	} {
		var out strings.Builder
		if err := status.WriteTable(&out, &test.report); err != nil || out.String() != test.want {
			t.Errorf("%s: %v:\n%s\nwant:\n%s", name, err, out.String(), test.want)
		}
	}
}
