// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"net/netip"
	"strings"
	"testing"

	"mustang/internal/lab"
	"mustang/internal/podlink"
	"mustang/internal/result"
	"mustang/internal/traffic"
)

// find returns the path of that ID.
func find(t *testing.T, id string) path {
	t.Helper()
	for _, p := range podLinks().paths {
		if p.id == id {
			return p
		}
	}
	t.Fatalf("no path %q", id)
	return path{}
}

// fitting returns a witness of 1,000 transactions that fits its path.
func fitting(t *testing.T, id string) witness {
	t.Helper()
	p := find(t, id)
	client := netip.MustParseAddrPort("192.168.10.11:40000")
	w := witness{path: p, measurement: traffic.Measurement{
		Workload: traffic.TCPRR, Count: 1000,
		ClientLocal: client, ClientPeer: p.connect, ServerLocal: p.listen, ServerPeer: client,
	}}
	count := func(place, name string, rx, tx uint64) {
		w.evidence.Devices = append(w.evidence.Devices, result.DeviceCount{Host: place, Name: name, RxPackets: rx, TxPackets: tx})
	}
	count(lab.PodA, lab.IfName, 1010, 1010)
	count(lab.PodB, lab.IfName, 1010, 1010)
	runs := map[string]uint64{}
	sides := func(rx, tx uint64) {
		count(lab.Host, lab.HostIfName(lab.PodA), rx, tx)
		count(lab.Host, lab.HostIfName(lab.PodB), rx, tx)
	}
	switch a := w.anatomy(); {
	case a.shared != "" && w.byRules():
		count(lab.Host, a.shared, 2020, 2020)
	case !a.sides:
	case p.datapath() == result.DatapathEBPF && a.delivery == toPeer:
		sides(1010, 3)
		runs["redirect_peer"] = 2020
	case p.datapath() == result.DatapathEBPF && a.delivery == fromPeer:
		sides(3, 1010)
	default:
		sides(1010, 1010)
	}
	if p.datapath() == result.DatapathEBPF {
		runs["from_pod"] = 2020
	}
	switch {
	case w.byRules():
		w.tracked, w.translated = true, true
	case p.lab.NetfilterCall && p.via == result.ViaNone:
		w.tracked = true
	case p.via == result.ViaEBPFTC:
		w.evidence.Connections = 1
		runs["forward"], runs["reverse"] = 1010, 1010
	case p.via == result.ViaEBPFSocket:
		runs["sock_connect"] = 1
	}
	w.evidence.ProgramRuns = runs
	if w.masqueraded() {
		w.measurement.ServerPeer = netip.AddrPortFrom(lab.Gateways[0].Addr(), 12345)
	}
	return w
}

// TestFindings lets the evidence of each kind of row fit, and then spoils one
// thing after the other.
func TestFindings(t *testing.T) {
	device := func(w *witness, place, name string) *result.DeviceCount {
		for i := range w.evidence.Devices {
			if d := &w.evidence.Devices[i]; d.Host == place && d.Name == name {
				return d
			}
		}
		w.evidence.Devices = append(w.evidence.Devices, result.DeviceCount{Host: place, Name: name})
		return &w.evidence.Devices[len(w.evidence.Devices)-1]
	}
	for _, test := range []struct {
		id, name string
		spoil    func(*witness)
		finding  string
	}{
		{"veth/pod-ip", "nothing", nil, ""},
		{"veth/cluster-ip/iptables", "nothing", nil, ""},
		{"bridge-call-on/pod-ip", "nothing", nil, ""},
		{"macvlan/cluster-ip/iptables", "nothing", nil, ""},
		{"veth+ebpf/pod-ip", "nothing", nil, ""},
		{"veth+ebpf/cluster-ip", "nothing", nil, ""},
		{"veth/cluster-ip/ebpf-socket", "nothing", nil, ""},
		{"bridge-call-on/cluster-ip/ebpf-socket", "nothing", nil, ""},
		{"ipvlan-l2/pod-ip", "nothing", nil, ""},
		{"ipvlan-l2/cluster-ip/iptables", "nothing", nil, ""},
		{"ipvlan-l3+ebpf/cluster-ip", "nothing", nil, ""},
		{"netkit/pod-ip", "nothing", nil, ""},
		{"netkit+ebpf/cluster-ip", "nothing", nil, ""},
		{"ovs-internal/cluster-ip/nftables", "nothing", nil, ""},
		{"ovs-internal+ebpf/cluster-ip", "nothing", nil, ""},
		{"tun/pod-ip", "nothing", nil, ""},
		{"tun+ebpf/cluster-ip", "nothing", nil, ""},
		{"veth/pod-ip", "no traffic", func(w *witness) { w.measurement.Count = 0 }, "nothing was transferred"},
		{"veth/pod-ip", "past the host", func(w *witness) { device(w, lab.Host, "veth-pod-a").TxPackets = 5 }, "too few packets"},
		{"veth/pod-ip", "by loopback", func(w *witness) { device(w, lab.Host, "lo").RxPackets = 1000 }, "not on the path"},
		{"veth/pod-ip", "programs", func(w *witness) { w.evidence.ProgramRuns = map[string]uint64{"from_pod": 1} }, "programs ran"},
		{"veth/pod-ip", "tracked", func(w *witness) { w.tracked = true }, "tracks"},
		{"veth/pod-ip", "other server", func(w *witness) { w.measurement.ServerLocal = w.measurement.ClientLocal }, "was reached at"},
		{"veth/cluster-ip/iptables", "no translation", func(w *witness) { w.translated = false }, "no translated entry"},
		{"veth/cluster-ip/iptables", "pod's address", func(w *witness) { w.measurement.ClientPeer = w.listen }, "peer is"},
		{"veth/cluster-ip/iptables", "masqueraded", func(w *witness) { w.measurement.ServerPeer = netip.MustParseAddrPort("192.168.10.1:1") }, "server's peer"},
		{"bridge-call-on/pod-ip", "not called", func(w *witness) { w.tracked = false }, "did not pass the host's rules"},
		{"bridge-call-off/pod-ip", "called", func(w *witness) { w.tracked = true }, "tracks"},
		{"macvlan/cluster-ip/iptables", "past the host", func(w *witness) { device(w, lab.Host, podlink.HostSlave).RxPackets = 9 }, "too few packets"},
		{"macvlan/pod-ip", "by the host", func(w *witness) { device(w, lab.Host, podlink.HostSlave).RxPackets = 999 }, "not on the path"},
		{"veth+ebpf/pod-ip", "by the stack", func(w *witness) { device(w, lab.Host, "veth-pod-a").TxPackets = 1000 }, "not on the path"},
		{"veth+ebpf/pod-ip", "no redirect", func(w *witness) { delete(w.evidence.ProgramRuns, "redirect_peer") }, "redirect_peer"},
		{"veth+ebpf/cluster-ip", "no program", func(w *witness) { w.evidence.ProgramRuns = nil }, "from_pod"},
		{"veth+ebpf/cluster-ip", "no entry", func(w *witness) { w.evidence.Connections = 0 }, "0 entries"},
		{"veth/cluster-ip/ebpf-socket", "not translated", func(w *witness) { w.evidence.ProgramRuns = nil }, "sock_connect"},
		{"veth/cluster-ip/ebpf-socket", "per packet", func(w *witness) { w.evidence.Connections = 1 }, "1 entries"},
		{"ipvlan-l3/pod-ip", "by the host", func(w *witness) { device(w, lab.Host, podlink.IPVLANHostSlave).TxPackets = 999 }, "not on the path"},
		{"netkit+ebpf/pod-ip", "by the stack", func(w *witness) { device(w, lab.Host, "veth-pod-b").RxPackets = 999 }, "not on the path"},
		{"tun+ebpf/pod-ip", "past the host", func(w *witness) { device(w, lab.Host, "veth-pod-b").RxPackets = 9 }, "too few packets"},
		{"veth+ebpf/cluster-ip", "by the kernel", func(w *witness) { w.tracked = true }, "tracks"},
	} {
		t.Run(test.id+" "+test.name, func(t *testing.T) {
			w := fitting(t, test.id)
			if test.spoil != nil {
				test.spoil(&w)
			}
			got := strings.Join(w.findings(), "; ")
			if test.finding == "" && got != "" {
				t.Errorf("findings %q, want none", got)
			}
			if !strings.Contains(got, test.finding) {
				t.Errorf("findings %q, want %q", got, test.finding)
			}
		})
	}
}
