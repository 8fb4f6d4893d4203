// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"strings"
	"testing"

	"mustang/internal/bench/suites"
	"mustang/internal/load"
	"mustang/internal/result"
	"mustang/internal/testkit"
)

// TestVanishedPolicyFails measures paths whose policy was removed: their rows have failed.
func TestVanishedPolicyFails(t *testing.T) {
	testkit.RequireTool(t, "iptables")
	testkit.RequireTool(t, "nft")
	paths := lookup(t, "policy")[0].Paths
	for id, reason := range map[string]string{"iptables/1": "0 rules", "nftables/1": "mustang-policy", "ebpf/1": "tracked increased by 0"} {
		t.Run(id, func(t *testing.T) {
			r := newRun(t)
			var path suites.Path
			for _, p := range paths {
				if p.ID == id {
					path = p
				}
			}
			l, err := r.testbed.lab(t.Context(), path.Lab)
			if err != nil {
				t.Fatal(err)
			}
			if err := l.ClearPolicy(t.Context()); err != nil {
				t.Fatal(err)
			}
			row := newRow(rowSpec{r.options.Suites[0], path, suites.Workload{Name: load.TCPCRR, Flows: 1}})
			if err := r.epoch(t.Context(), []*measuredRow{row}, 0, budgetOf(2)); err != nil {
				t.Fatal(err)
			}
			if row.row.Status != result.StatusFailed || !strings.Contains(row.row.Reason, reason) {
				t.Errorf("%s %s, want failed: %s", row.row.Status, row.row.Reason, reason)
			}
		})
	}
}
