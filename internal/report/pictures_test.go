// SPDX-License-Identifier: Apache-2.0

package report_test

import (
	"slices"
	"testing"

	"mustang/internal/report"
	"mustang/internal/result"
	"mustang/internal/testkit"
)

// TestCostPicture checks that the picture of costs has both parts of a cost where they were compared, else the total.
func TestCostPicture(t *testing.T) {
	plain, service := podRow("plain", 40, 39, 41), cluster("plain", "nftables")
	proxied := withProxy(podRow("plain", 37, 36, 38), "nftables")
	service.Proxy = "nftables"
	total := asking(result.AsksTotal, service.ID, "plain/pod-ip", [3]float64{0.9, 0.89, 0.91})
	all := asking(result.AsksProxy, proxied.ID, "plain/pod-ip", [3]float64{0.92, 0.91, 0.93})
	onTop := asking(result.AsksService, service.ID, proxied.ID, [3]float64{0.98, 0.97, 0.99})
	for _, tc := range []struct {
		name        string
		comparisons []result.Comparison
		labels      []string
	}{
		{"total alone", []result.Comparison{total}, []string{"nft, both costs"}},
		{"both parts", []result.Comparison{total, all, onTop}, []string{"nft, all traffic", "nft, a Service on top"}},
		{"one part", []result.Comparison{total, all}, []string{"nft, all traffic"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, err := report.New(linksFile(t, []result.Row{plain, proxied, service}, tc.comparisons...))
			testkit.Succeed(t, err)
			suite := r.Suites[0]
			testkit.Require(t, len(suite.Workloads[0].Services) == 1, "no picture of costs")
			var labels []string
			for _, m := range suite.Workloads[0].Services[0].Marks {
				labels = append(labels, m.Label)
			}
			testkit.Check(t, slices.Equal(labels, tc.labels), "marks %q, want %q", labels, tc.labels)
		})
	}
}
