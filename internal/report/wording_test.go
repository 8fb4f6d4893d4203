// SPDX-License-Identifier: Apache-2.0

package report

import (
	"testing"

	"mustang/internal/result"
	"mustang/internal/testkit"
)

// TestNumbers checks the ways to print figures.
func TestNumbers(t *testing.T) {
	for _, tc := range []struct{ got, want string }{
		{Number(1234567.8, 0), "1,234,568"},
		{Number(999.96, 1), "1,000.0"},
		{Number(-0.001, 1), "0.0"},
		{Number(-1234, 0), "-1,234"},
		{Number(12.345, decimals(12.345)), "12.35"},
		{Number(0.5, decimals(58.6, 0.5)), "0.50"},
		{Number(24512, decimals(24512)), "24,512"},
		{Number(0, decimals()), "0"},
		{percentOf(0.2514), "25.1\u00a0%"},
		{percentOf(0.0003), "0.03\u00a0%"},
		{Number(0.99951, 3), "1.000"},
		{seconds(0.25), "250ms"},
		{seconds(2), "2s"},
		{memorySize(8323072000), "7.8 GiB"},
		{intervalText(nil, 1), "too few rounds"},
		{intervalText(&[2]float64{1, 2}, 1), "1.0 to 2.0"},
		{countOf(1, "round"), "1 round"},
		{countOf(2, "round"), "2 rounds"},
		{inWords([]string{"a", "b", "c"}), "a, b and c"},
	} {
		testkit.Check(t, tc.got == tc.want, "got %q, want %q", tc.got, tc.want)
	}
}

func TestConnectionName(t *testing.T) {
	for want, row := range map[string]result.Row{
		"veth":           {ID: "veth/pod-ip/again", Link: "veth", Variant: "again", Repeats: "veth/pod-ip"},
		"bridge call-on": {ID: "bridge-call-on/pod-ip", Link: "bridge", Variant: "call-on"},
		"tun offload":    {ID: "tun-offload/pod-ip", Link: "tun", Variant: "offload"},
		"netkit-l2+eBPF": {ID: "netkit-l2+ebpf/pod-ip", Link: "netkit-l2", Datapath: result.DatapathEBPF},
		"ovs-veth (kernel)+eBPF": {ID: "ovs-veth+ebpf/pod-ip", Link: "ovs-veth", Variant: "kernel",
			Label: "ovs-veth (kernel) + eBPF", Datapath: result.DatapathEBPF},
		"loopback": {ID: "loopback", Link: "host", Label: "loopback"},
		"veth (two hosts) (VXLAN) (IPv6)": {ID: "veth/pod-ip", Link: "veth", Placement: result.PlacementTwoHosts,
			Overlay: result.OverlayVXLAN, Family: "ipv6"},
	} {
		got := connectionName(row)
		testkit.Check(t, got == want, "%s is named %q, want %q", row.ID, got, want)
	}
}
