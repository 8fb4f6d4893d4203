// SPDX-License-Identifier: Apache-2.0

package report

import (
	"slices"
	"strings"
	"testing"

	"mustang/internal/result"
)

// TestCountedWords checks that a report on counted instructions says so, takes the
// fewest for the best, and never speaks of speed or time.
func TestCountedWords(t *testing.T) {
	f := allModes(true)
	page, text := plainText(htmlOf(t, f)), tableOf(t, f, TableOptions{})
	for name, got := range map[string]string{"page": page, "table": text} {
		joined := strings.ReplaceAll(strings.Join(strings.Fields(got), " "), "\u00a0", " ")
		for _, want := range []string{
			countedWarning[:40], "takes the fewest instructions of", "instructions/packet", "instructions/transaction",
			"A cluster IP costs, in instructions against the pod IP", "by iptables 31.0 %", "% more", "UDP packets",
		} {
			if !strings.Contains(joined, want) {
				t.Errorf("%s does not say %q", name, want)
			}
		}
		for _, never := range []string{"fastest", "faster", "slower", "CPU µs", "throughput", "Gbit/s", "on this machine (", "0ms", "Longer is better", "left of it"} {
			if strings.Contains(joined, never) {
				t.Errorf("%s says %q", name, never)
			}
		}
	}
	for _, want := range []string{"shorter is better", "right of it, it costs", "mustang bench --vm pod-links", "6.12.0-1 (made up)"} {
		if !strings.Contains(page, want) {
			t.Errorf("page does not say %q", want)
		}
	}
	if out := tableOf(t, allModes(false), TableOptions{}); strings.Contains(out, "nstructions") || !strings.Contains(out, "fastest") {
		t.Error("a report on rates speaks of instructions")
	}
}

// TestCountedStopped checks what is said of a counted run that was stopped: its
// rounds say nothing of how far it came.
func TestCountedStopped(t *testing.T) {
	f := allModes(true)
	f.Run.Interrupted = true
	out := tableOf(t, f, TableOptions{})
	if !strings.Contains(out, "interrupted: there are rows") || strings.Contains(out, "6 of 6 rounds") {
		t.Error("the state of the run is not told")
	}
}

// TestFewestIsBest turns a set of rows into instructions: what was best is worst.
func TestFewestIsBest(t *testing.T) {
	rows := []result.Row{podRow("veth", 30, 29, 31), podRow("macvlan", 40, 39, 41), podRow("bridge", 50, 49, 51)}
	comparisons := []result.Comparison{
		versus("veth/cluster-ip/iptables", "veth/pod-ip", 10, [3]float64{1.25, 1.24, 1.26}),
		versus("macvlan/cluster-ip/iptables", "macvlan/pod-ip", 10, [3]float64{1.1, 1.09, 1.11}),
		versus("veth/cluster-ip/ebpf-socket", "veth/pod-ip", 10, [3]float64{0.9, 0.89, 0.91}),
	}
	rows = append(rows, cluster("veth", "iptables"), cluster("macvlan", "iptables"), cluster("veth", "ebpf-socket"))
	for i := range rows {
		rows[i].Unit = result.UnitPerTransaction
	}
	f := result.File{Schema: result.Schema, Rows: rows, Run: result.Run{Clock: result.ClockInstructions, Comparisons: comparisons}}
	v := newView(f)
	a := v.suites[0].answers()[0]
	got := strings.ReplaceAll(a.Lead+" "+strings.Join(a.More, " "), "\u00a0", " ")
	for _, want := range []string{
		"veth takes the fewest instructions of 3 ways", "30.00 instructions/transaction",
		"by iptables 10.0 % (macvlan) to 25.0 % (veth)", "by eBPF (socket) less than nothing: 10.0 % fewer (veth)",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q does not say %q", got, want)
		}
	}
	words := v.sets[0].comparisonColumns()[4].cells
	if !slices.Equal(words, []string{"25.0\u00a0% more", "10.0\u00a0% more", "10.0\u00a0% fewer"}) {
		t.Errorf("findings %q", words)
	}
}

// TestLost checks that a lossy stream of datagrams is shown as such.
func TestLost(t *testing.T) {
	f := allModes(false)
	f.Rows = slices.DeleteFunc(f.Rows, func(r result.Row) bool { return r.Workload != result.WorkloadUDPStream })
	f.Rows[1].LostShare, f.Rows[1].OutOfOrder = 0.125, 7
	for name, got := range map[string]string{"table": tableOf(t, f, TableOptions{}), "page": plainText(htmlOf(t, f))} {
		if !strings.Contains(strings.ReplaceAll(got, "\u00a0", " "), "12.5 %, 7 late") {
			t.Errorf("%s does not tell of the loss", name)
		}
	}
}

func TestConnectionName(t *testing.T) {
	for want, row := range map[string]result.Row{
		"veth":                         {ID: "veth/pod-ip/again", Link: "veth", Variant: "again"},
		"bridge call-on":               {ID: "bridge-call-on/pod-ip", Link: "bridge", Variant: "call-on"},
		"tun offload":                  {ID: "tun-offload/pod-ip", Link: "tun", Variant: "offload"},
		"netkit-l2 + eBPF":             {ID: "netkit-l2+ebpf/pod-ip", Link: "netkit-l2", Datapath: result.DatapathEBPF},
		"ovs-veth (kernel) + eBPF":     {ID: "ovs-veth+ebpf/pod-ip", Link: "ovs-veth", Variant: "kernel", Datapath: result.DatapathEBPF},
		"ovs-internal (user-space)":    {ID: "ovs-internal/pod-ip", Link: "ovs-internal", Variant: "user-space"},
		"loopback":                     {ID: "loopback", Link: "host"},
		"veth, two hosts, VXLAN, IPv6": {ID: "veth/pod-ip", Link: "veth", Placement: result.PlacementTwoHosts, Overlay: result.OverlayVXLAN, Family: "ipv6"},
	} {
		if got := connectionName(row); got != want {
			t.Errorf("%s is named %q, want %q", row.ID, got, want)
		}
	}
}

// TestMatrixOrder checks that ways of cluster IP have one order, whichever a
// file names first.
func TestMatrixOrder(t *testing.T) {
	for _, counted := range []bool{false, true} {
		for _, s := range newView(allModes(counted)).sets {
			if got := strings.Join(s.matrix().Vias, ", "); got != "iptables, nftables, eBPF (per packet), eBPF (socket)" {
				t.Errorf("ways of cluster IP: %s", got)
			}
		}
	}
}
