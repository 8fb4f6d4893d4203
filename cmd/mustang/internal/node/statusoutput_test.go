// SPDX-License-Identifier: Apache-2.0

package node

import (
	"strings"
	"testing"

	"mustang/internal/datapath/flows"
	"mustang/internal/datapath/objects"
)

// TestWriteStatus prints what is loaded, what is missing and how to get it, and leaves out what is in order.
func TestWriteStatus(t *testing.T) {
	for name, test := range map[string]struct {
		report statusReport
		want   string
	}{
		"nothing": {statusReport{Root: "/bpf"}, "ok\n/bpf: nothing is loaded\n"},
		"drops": {
			statusReport{Root: "/bpf", Pins: objects.Pins{Layouts: []string{"v7"}}, Drops: []flows.Counter{{Name: "drop_ttl"},
				{Name: "drop_rewrite", Packets: 3, Meaning: "why"}}},
			"ok\n/bpf: maps of layout v7\n\nDROPPED       PACKETS  MEANING\ndrop_rewrite  3        why\n",
		},
		"features": {
			statusReport{Root: "/bpf", Pins: objects.Pins{Layouts: []string{"v6", "v7"}}, Features: []feature{
				{Name: "tcx"}, {Name: "XDP", Needs: "Linux 4.8", Missing: "not here"}, {Name: "netkit programs",
					Missing: "not asked for"},
			}, Findings: []finding{{What: "a map is full", Do: "a larger one"}}},
			"1 problem:\n  a map is full (what helps: a larger one)\n/bpf: maps of layout v6, v7\n" +
				"\nMISSING FEATURE  NEEDS      REASON\nXDP              Linux 4.8  not here\n",
		},
		"problems": {
			statusReport{Root: "/bpf", Findings: []finding{{What: "a", Do: "b"}, {What: "c", Do: "d"}}},
			"2 problems:\n  a (what helps: b)\n  c (what helps: d)\n/bpf: nothing is loaded\n",
		},
	} {
		var out strings.Builder
		if err := writeStatus(&out, &test.report); err != nil || out.String() != test.want {
			t.Errorf("%s: %v:\n%s\nwant:\n%s", name, err, out.String(), test.want)
		}
	}
}
