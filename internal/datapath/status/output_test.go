// SPDX-License-Identifier: Apache-2.0

package status_test

import (
	"errors"
	"strings"
	"testing"

	"mustang/internal/datapath"
	"mustang/internal/datapath/status"
)

// TestWriteTable says what is loaded, what is missing and how to get it, and leaves out what is as it should be.
func TestWriteTable(t *testing.T) {
	for name, test := range map[string]struct {
		report status.Report
		want   string
	}{
		"nothing": {status.Report{Root: "/bpf"}, "/bpf: nothing is loaded\n"},
		"drops": {
			status.Report{Root: "/bpf", Layouts: []string{"v7"}, Drops: []datapath.Counter{{Name: "drop_ttl"}, {Name: "drop_rewrite", Packets: 3}}},
			"/bpf: maps of layout v7\n\nDROPPED       PACKETS\ndrop_rewrite  3\n",
		},
		"features": {
			status.Report{Root: "/bpf", Layouts: []string{"v6", "v7"}, Features: []status.Feature{
				{Name: "tcx"}, {Name: "netkit", Needs: "CONFIG_NETKIT", Missing: errors.New("not here")},
			}, Findings: []status.Finding{{What: "a map is full", Do: "a larger one"}}},
			"/bpf: maps of layout v6, v7\n\nMISSING FEATURE  NEEDS          REASON\nnetkit           CONFIG_NETKIT  not here\n" +
				"\nAMISS\na map is full (what helps: a larger one)\n",
		},
	} {
		var out strings.Builder
		if err := status.WriteTable(&out, &test.report); err != nil || out.String() != test.want {
			t.Errorf("%s: %v:\n%s\nwant:\n%s", name, err, out.String(), test.want)
		}
	}
}
