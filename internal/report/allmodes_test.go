// SPDX-License-Identifier: Apache-2.0

package report

import (
	"strings"
	"time"

	"mustang/internal/result"
)

// allModes makes up a file with every link mode, of rates or of counted
// instructions. The figures are invented: each step of a path costs a little.
func allModes(counted bool) result.File {
	f := result.File{Schema: result.Schema, Run: result.Run{
		Suite: "pod-links", Clock: result.ClockTime, Kernel: "6.12.0-made-up", Seed: 42, Rounds: 6, DurationSeconds: 0.3, WarmupSeconds: 0.1,
		Machine: result.Machine{CPUModel: "Made-up CPU", CPUs: 1, Arch: "x86_64", MemoryBytes: 2 << 30, Virtualisation: "QEMU"},
		Started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Finished: time.Date(2026, 1, 2, 3, 9, 5, 0, time.UTC),
		Notes: []string{"All figures of this file are made up for tests: nothing was measured."},
	}}
	workloads := []string{result.WorkloadTCPStream, result.WorkloadUDPStream, result.WorkloadTCPRR}
	if counted {
		f.Run.Clock, f.Run.DurationSeconds, f.Run.WarmupSeconds = result.ClockInstructions, 0, 0
		f.Run.Versions = map[string]string{"guest kernel": "6.12.0-1 (made up)"}
		workloads = workloads[1:]
	}
	m := modesMaker{file: &f, counted: counted}
	for _, m.workload = range workloads {
		m.add("loopback", "host", "", 8000)
		m.add("veth/pod-ip", "veth", "", 11700)
		m.add("veth/pod-ip/again", "veth", "again", 11701)
		m.compare("veth/pod-ip/again", "veth/pod-ip", true)
		for i, mode := range []string{"veth", "bridge-call-off", "bridge-call-on", "macvlan", "ipvlan-l2", "ipvlan-l3", "ipvlan-l3s",
			"netkit", "netkit-l2", "ovs-veth", "ovs-internal", "tun", "tun-offload"} {
			link, variant := mode, ""
			for _, base := range []string{"bridge", "tun"} {
				if rest, ok := strings.CutPrefix(mode, base+"-"); ok {
					link, variant = base, rest
				}
			}
			cost := 11700 - float64(i%7)*430 + float64(i/11)*13000
			if mode != "veth" {
				m.add(mode+"/pod-ip", link, variant, cost)
			}
			for j, via := range []string{result.ViaIPTables, result.ViaNFTables, result.ViaEBPFSocket} {
				id := mode + "/cluster-ip/" + via
				m.add(id, link, variant, cost*[]float64{1.31, 1.24, 1.0001}[j])
				m.compare(id, mode+"/pod-ip", false)
			}
			if variant == "" {
				m.add(mode+"+ebpf/pod-ip", link, "", cost*0.89)
				m.add(mode+"+ebpf/cluster-ip", link, "", cost*(0.9+float64(i)*0.005))
				m.compare(mode+"+ebpf/cluster-ip", mode+"+ebpf/pod-ip", false)
			}
		}
	}
	return f
}

// modesMaker adds made-up rows to a file.
type modesMaker struct {
	file     *result.File
	counted  bool
	workload string
}

// add adds a row, whose ID names target and way, that takes so many instructions. In a file of rates it takes so
// many nanoseconds.
func (m modesMaker) add(id, link, variant string, cost float64) {
	_, way, _ := strings.Cut(id, "/")
	target, via, _ := strings.Cut(way, "/")
	switch {
	case target == "":
		target, via = result.TargetLoopback, result.ViaNone
	case target == result.TargetPodIP:
		via = result.ViaNone
	case via == "":
		via = result.ViaEBPFTC
	}
	row := result.Row{
		Suite: "pod-links", ID: id, Link: link, Variant: variant, Datapath: result.DatapathKernel, Placement: result.PlacementSameHost,
		Overlay: result.OverlayNone, Target: target, Via: via, Family: "ipv4", Workload: m.workload, Engine: "native", Status: result.StatusOK,
		CPUUnit: "transaction",
	}
	if strings.Contains(id, "+ebpf") {
		row.Datapath = result.DatapathEBPF
	}
	if strings.HasPrefix(link, "ovs") {
		row.Note = "user-space datapath of Open vSwitch"
	}
	if link == "netkit-l2" {
		row.Status, row.Reason = result.StatusSkipped, "link mode netkit-l2: kernel 6.1.0-made-up has no netkit devices (module netkit, since Linux 6.7)"
		m.file.Rows = append(m.file.Rows, row)
		return
	}
	value := cost
	switch {
	case m.counted && m.workload == result.WorkloadUDPStream:
		row.Unit, row.CPUUnit = result.UnitPerPacket, "packet"
	case m.counted:
		row.Unit, value = result.UnitPerTransaction, 2.9*cost
	case ofCalls(m.workload):
		row.Unit, row.CPUUnit, value, row.CPUUSPerUnit = result.UnitMilliseconds, "call", cost, 900*cost
		row.LatencyUS = &result.Latency{P50: 1e3 * cost, P90: 1.1e3 * cost, P99: 1.6e3 * cost, P999: 1.7e3 * cost}
	case m.workload == result.WorkloadTCPRR:
		row.Unit, value, row.CPUUSPerUnit = result.UnitTransactions, 1e9/(2.9*cost), 2.9*cost/1e3
		row.LatencyUS = &result.Latency{P50: 2.9 * cost / 1e3, P90: 3.1 * cost / 1e3, P99: 4 * cost / 1e3, P999: 9 * cost / 1e3}
	default:
		row.Unit, row.CPUUnit, value, row.CPUUSPerUnit = result.UnitGbit, "MB", 3e5/cost, cost/25
		row.LostShare = map[bool]float64{true: cost / 4e5}[m.workload == result.WorkloadUDPStream]
	}
	row.Median = value
	for i := range m.file.Run.Rounds {
		row.Samples = append(row.Samples, value*(1+float64(i-3)*m.noise()))
	}
	row.CI95 = &[2]float64{row.Samples[0], row.Samples[len(row.Samples)-1]}
	m.file.Rows = append(m.file.Rows, row)
}

// noise is how much a figure differs from round to round.
func (m modesMaker) noise() float64 {
	if m.counted {
		return 0.0001
	}
	return 0.006
}

// compare compares two rows of the file, if both have a figure.
func (m modesMaker) compare(numerator, denominator string, aa bool) {
	medians := map[string]float64{}
	for _, row := range m.file.Rows {
		if row.Workload == m.workload {
			medians[row.ID] = row.Median
		}
	}
	a, b := medians[numerator], medians[denominator]
	if a == 0 || b == 0 {
		return
	}
	c := result.Comparison{Name: numerator + " / " + denominator, Workload: m.workload, Numerator: numerator, Denominator: denominator, AA: aa, Ratio: a / b}
	for i := range m.file.Run.Rounds {
		c.Ratios = append(c.Ratios, c.Ratio*(1+float64(i-3)*m.noise()/2))
	}
	c.CI95 = &[2]float64{c.Ratios[0], c.Ratios[len(c.Ratios)-1]}
	m.file.Run.Comparisons = append(m.file.Run.Comparisons, c)
}
