// SPDX-License-Identifier: Apache-2.0

package report

import (
	"strings"
	"time"

	"mustang/internal/result"
)

// allSuites makes up a file with the rows of all suites. The figures are invented.
func allSuites() result.File {
	f := allModes(false)
	f.Rows, f.Run.Comparisons = nil, nil
	f.Run.Suite, f.Run.Started = "all", time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, name := range []string{suiteInterfaces, suiteLatency, suitePodLinks, suiteSwitching, suiteDocker, suiteCNI} {
		one := oneSuite(name)
		f.Rows = append(f.Rows, one.Rows...)
		f.Run.Comparisons = append(f.Run.Comparisons, one.Run.Comparisons...)
	}
	return f
}

// oneSuite makes up a file of one suite.
func oneSuite(name string) result.File {
	f := allModes(false)
	if name == suitePodLinks {
		for i := range f.Run.Comparisons {
			f.Run.Comparisons[i].Suite = name
		}
		return f
	}
	f.Rows, f.Run.Comparisons, f.Run.Suite = nil, nil, name
	m := suitesMaker{modesMaker: modesMaker{file: &f}, suite: name}
	switch name {
	case suiteInterfaces:
		m.interfaces()
	case suiteLatency:
		m.latency()
	case suiteSwitching:
		m.switching()
	case suiteDocker:
		m.docker()
	case suiteCNI:
		m.cni()
	}
	return f
}

// suitesMaker adds made-up rows of suites to a file.
type suitesMaker struct {
	modesMaker
	suite string
	flows int
}

// way is a made-up row: what it takes, as in [modesMaker].
type way struct {
	id, link, variant, target, via string
	cost                           float64
}

// add adds rows, and compares each to the first, which is measured twice.
func (m suitesMaker) add(ways []way) {
	first := ways[0]
	again := first
	again.id, again.variant, again.cost = first.id+"/again", "again", first.cost*1.0004
	for i, w := range append(ways[:1:1], append([]way{again}, ways[1:]...)...) {
		m.modesMaker.add(w.id+"/pod-ip", w.link, w.variant, w.cost)
		row := &m.file.Rows[len(m.file.Rows)-1]
		row.Suite, row.ID, row.Flows, row.Target, row.Via, row.Note = m.suite, w.id, m.flows, w.target, w.via, ""
		m.detail(row, w)
		if i > 0 && m.suite != suiteSwitching {
			m.compare(w.id, first.id, w.id == again.id)
		}
	}
	if m.suite == suiteSwitching {
		m.compare(again.id, first.id, true)
	}
}

// detail gives a row what its suite is about.
func (m suitesMaker) detail(row *result.Row, w way) {
	if strings.Contains(w.id, "+ebpf") {
		row.Datapath = result.DatapathEBPF
	}
	if strings.HasPrefix(w.id, "two-hosts") || strings.HasPrefix(w.id, "vxlan") || m.suite == suiteLatency {
		row.Placement = result.PlacementTwoHosts
	}
	if strings.HasPrefix(w.id, "vxlan") {
		row.Overlay = result.OverlayVXLAN
	}
	if strings.HasSuffix(w.id, "/vm") {
		row.Note = "the pods are virtual machines, emulated in software (tcg)"
	}
	if w.cost == 0 && m.suite == suiteCNI {
		row.Reason = "/usr/lib/cni/ptp is not installed (Debian package containernetworking-plugins)"
	} else if w.cost == 0 {
		row.Reason = "kernel 6.1.0-made-up has no ipvlan devices"
	}
	if w.cost == 0 {
		row.Status, row.Samples, row.Median, row.CI95 = result.StatusSkipped, nil, 0, nil
		row.LatencyUS, row.CPUUSPerUnit, row.LostShare = nil, 0, 0
		return
	}
	if row.Workload == result.WorkloadUDPStream {
		row.Offered, row.LostShare, row.OutOfOrder = row.Median*1.05, 0.05, uint64(w.cost/1000)
	}
	if m.suite == suiteCNI {
		m.called(row)
		return
	}
	row.Evidence.SoftirqsPerUnit = w.cost / 4000
	row.Evidence.Devices = []result.DeviceCount{
		{Host: "host-b", Name: "uplink", RxPackets: 5000, TxPackets: 5001}, {Host: "host-b", Name: "lo", RxPackets: 3, TxPackets: 3},
		{Host: "host-a", Name: "uplink", RxPackets: 5001, TxPackets: 5000},
	}
	if strings.HasPrefix(w.id, "veth") {
		row.Evidence.Devices = append(row.Evidence.Devices, result.DeviceCount{Host: "host-b", Name: "mst-b", RxPackets: 5000, TxPackets: 5000},
			result.DeviceCount{Host: "pod-b", Name: "eth0", RxPackets: 5000, TxPackets: 5000})
	}
	if strings.HasSuffix(w.id, "nat") {
		row.Evidence.Hooks = []string{"host-b: ip mustang-nat postrouting (postrouting)", "host-b: ip mustang-nat forward (forward)"}
	}
}

// compare compares two rows of the file under the maker's workload and flows.
func (m suitesMaker) compare(numerator, denominator string, aa bool) {
	var rows []result.Row
	for _, row := range m.file.Rows {
		if row.Suite == m.suite && row.Flows == m.flows {
			rows = append(rows, row)
		}
	}
	own := result.File{Run: m.file.Run, Rows: rows}
	own.Run.Comparisons = nil
	modesMaker{file: &own, workload: m.workload}.compare(numerator, denominator, aa)
	for _, c := range own.Run.Comparisons {
		c.Suite, c.Flows = m.suite, m.flows
		m.file.Run.Comparisons = append(m.file.Run.Comparisons, c)
	}
}

func (m suitesMaker) interfaces() {
	m.workload = result.WorkloadTCPStream
	const pod, published = result.TargetPodIP, result.TargetPublishedPort
	m.add([]way{
		{"loopback", "host", "", result.TargetLoopback, "none", 6000},
		{"host-ip", "host", "", result.TargetHostIP, "none", 6004},
		{"veth/pod-ip", "veth", "", pod, "none", 6900},
		{"bridge/pod-ip", "bridge", "", pod, "none", 7100},
		{"container-to-host", "bridge", "docker", result.TargetHostIP, "none", 7130},
		{"host-to-container", "bridge", "docker", pod, "none", 6300},
		{"container-to-container", "bridge", "docker", pod, "none", 7400},
		{"published-port/localhost", "bridge", "docker", published, "docker", 14000},
		{"published-port/host-ip", "bridge", "docker", published, "docker", 7600},
		{"tun/pod-ip", "tun", "", pod, "none", 90000},
		{"tun-offload/pod-ip", "tun", "offload", pod, "none", 21000},
	})
	m.compare("published-port/localhost", "published-port/host-ip", false)
	m.compare("tun-offload/pod-ip", "tun/pod-ip", false)
}

func (m suitesMaker) latency() {
	m.workload = result.WorkloadTCPRR
	m.add([]way{
		{"host", "host", "", result.TargetHostIP, "none", 12000},
		{"veth-bridge-nat", "bridge", "nat", result.TargetHostIP, "none", 13500},
		{"veth", "veth", "", result.TargetHostIP, "none", 13100},
		{"veth+ebpf", "veth", "", result.TargetHostIP, "ebpf-tc", 12600},
		{"macvlan", "macvlan", "", result.TargetHostIP, "none", 12003},
		{"ipvlan-l2", "ipvlan-l2", "", result.TargetHostIP, "none", 0},
	})
}

func (m suitesMaker) switching() {
	for _, m.workload = range []string{result.WorkloadTCPStream, result.WorkloadUDPStream} {
		for _, m.flows = range []int{0, 3} {
			ways := []way{
				{"two-hosts/host", "host", "", result.TargetHostIP, "none", 16000},
				{"two-hosts/host-bridge", "host", "on a bridge", result.TargetHostIP, "none", 16700},
			}
			var ids []string
			kinds := []struct {
				id, link string
				cost     float64
			}{{"bridge/veth", "bridge", 17000}, {"bridge/vm", "tap", 160000}, {"ovs/veth", "ovs-veth", 17010},
				{"ovs/internal", "ovs-internal", 16200}, {"ovs/vm", "tap", 171000}}
			for i, place := range []string{"same-host", "two-hosts", "vxlan"} {
				ids = nil
				for j, k := range kinds {
					ids = append(ids, k.id)
					ways = append(ways, way{place + "/" + k.id, k.link, "", result.TargetPodIP, "none", k.cost * (1 + float64(i*(3+j))/10)})
				}
			}
			for i, kind := range []string{"veth", "internal", "vm"} {
				ways = append(ways, way{"vxlan/ovs-bridge/" + kind, "bridge", "ovs-bridge", result.TargetPodIP, "none", 31000 + float64(i*i)*60000})
			}
			m.add(ways)
			m.switches(ids)
		}
	}
}

// switches compares switches, places and overlays.
func (m suitesMaker) switches(ids []string) {
	for i, place := range []string{"same-host", "two-hosts", "vxlan"} {
		for j, twin := range []string{"bridge/veth", "bridge/vm", "bridge/veth", "bridge/veth", "bridge/vm"} {
			if j > 1 {
				m.compare(place+"/"+ids[j], place+"/"+twin, false)
			}
			if i > 0 {
				m.compare(place+"/"+ids[j], []string{"same-host", "two-hosts"}[i-1]+"/"+ids[j], false)
			}
		}
	}
	m.compare("vxlan/ovs-bridge/veth", "vxlan/bridge/veth", false)
	m.compare("vxlan/ovs-bridge/vm", "vxlan/bridge/vm", false)
	m.compare("two-hosts/host-bridge", "two-hosts/host", false)
}

func (m suitesMaker) docker() {
	const pod, published = result.TargetPodIP, result.TargetPublishedPort
	for _, m.workload = range []string{result.WorkloadTCPStream, result.WorkloadTCPRR} {
		m.add([]way{
			{"host-to-host", "host", "", result.TargetHostIP, "none", 16000},
			{"host-mode", "host", "docker", result.TargetHostIP, "none", 16010},
			{"published-port/two-hosts", "bridge", "docker", published, "docker", 16900},
			{"published-port/same-host", "bridge", "docker", published, "docker", 6300},
			{"published-port/localhost", "bridge", "docker", published, "docker", 13000},
			{"published-port/localhost/no-proxy", "bridge", "docker no-proxy", published, "docker", 6350},
			{"container-to-container/host-ip", "bridge", "docker", published, "docker", 19000},
			{"container-to-container/ip", "bridge", "docker", pod, "none", 7300},
		})
	}
}

// called gives a row what only calls have.
func (m suitesMaker) called(row *result.Row) {
	row.Engine = "exec"
	row.Evidence.Attachments = &result.Attachments{Added: 200, Removed: 200, Reached: "10.80.0.1 (host)"}
	if row.Link == "bridge" {
		row.Evidence.Attachments.Kept = []string{"cni0"}
	}
	row.Evidence.Devices = []result.DeviceCount{{Host: "pod", Name: "eth0", RxPackets: 40, TxPackets: 50}}
	if m.flows > 1 {
		row.CallsPerSecond = 50e3 / row.Median
	}
}

func (m suitesMaker) cni() {
	for _, m.flows = range []int{0, 100} {
		for _, m.workload = range []string{result.WorkloadCNIAdd, result.WorkloadCNIDel} {
			scale := float64(max(m.flows/2, 1))
			called := func(id, link string, cost float64) way {
				return way{id, link, "", result.TargetNone, "none", scale * cost}
			}
			m.add([]way{
				called("bridge", "bridge", 14), called("ptp", "veth", 0), called("macvlan", "macvlan", 14.004),
				called("mustang-veth", "veth", 4.2), called("mustang-veth+ebpf", "veth", 4.9), called("mustang-bridge", "bridge", 4.201),
			})
			m.compare("mustang-veth+ebpf", "mustang-veth", false)
			m.compare("mustang-veth", "mustang-bridge", false)
		}
	}
}
