// SPDX-License-Identifier: Apache-2.0

package evidence_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"mustang/internal/bench/evidence"
	"mustang/internal/bench/suites"
	"mustang/internal/lab"
	"mustang/internal/load"
	"mustang/internal/podlink"
	"mustang/internal/result"
	"mustang/internal/testkit"
)

func find(t *testing.T, id string) evidence.Path {
	t.Helper()
	found, err := suites.Lookup(suites.Default)
	testkit.Succeed(t, err)
	for _, p := range found[0].Paths {
		if p.ID == id {
			return p.Path
		}
	}
	t.Fatalf("no path %q", id)
	return evidence.Path{}
}

// fitting returns the observation of 1,000 transactions that took their path.
func fitting(t *testing.T, id string) evidence.Observation {
	t.Helper()
	p := find(t, id)
	client := netip.MustParseAddrPort("192.168.10.11:40000")
	o := evidence.Observation{Path: p, Measurement: load.Measurement{
		Workload: load.TCPRR, Count: 1000,
		ClientLocal: client, ClientPeer: p.Connect, ServerLocal: p.Listen, ServerPeer: client,
	}}
	count := func(place, name string, rx, tx uint64) {
		o.Evidence.Devices = append(o.Evidence.Devices, result.DeviceCount{Host: place, Name: name, RxPackets: rx,
			TxPackets: tx})
	}
	crossing := uint64(1010)
	if p.Lab.Sockmap {
		crossing = 10
	}
	count(lab.PodA, lab.IfName, crossing, crossing)
	count(lab.PodB, lab.IfName, crossing, crossing)
	runs := map[string]uint64{}
	hostSides := func(rx, tx uint64) {
		count(lab.Host, lab.HostIfName(lab.PodA), rx, tx)
		count(lab.Host, lab.HostIfName(lab.PodB), rx, tx)
	}
	mode, err := podlink.Lookup(p.Link)
	testkit.Succeed(t, err)
	traits, ebpf := mode.Traits(), p.Datapath() == result.DatapathEBPF
	byRules := p.Via == result.ViaIPTables || p.Via == result.ViaNFTables
	switch {
	case !traits.HostSide && byRules:
		count(lab.Host, traits.HostDevice, 2020, 2020)
	case !traits.HostSide:
	case ebpf && traits.Delivery == podlink.DeliverToPeer:
		hostSides(1010, 3)
		runs["redirect_peer"] = 2020
	case ebpf && traits.Delivery == podlink.DeliverFromPeer:
		hostSides(3, 1010)
	default:
		hostSides(1010, 1010)
	}
	if ebpf {
		runs["from_pod"] = 2020
	}
	switch {
	case byRules:
		o.Tracked, o.Translated, o.Redirected = true, true, true
	case p.Target == result.TargetPodIP && (p.Lab.NetfilterCall || rulesTrack(p)):
		o.Tracked = true
	case p.Via == result.ViaEBPFTC:
		o.Evidence.Connections = 1
		runs["forward"], runs["reverse"] = 1010, 1010
	case p.Via == result.ViaEBPFSocket:
		runs["sock_connect"] = 1
	}
	o.Evidence.ProgramRuns = runs
	if p.Masqueraded() {
		o.Measurement.ServerPeer = netip.AddrPortFrom(lab.Gateways[0].Addr(), 12345)
	}
	return o
}

// rulesTrack reports whether the host's rules for services see the packets of a pod IP: the host must route them.
func rulesTrack(p evidence.Path) bool {
	rules := p.Lab.Via == lab.ViaIPTables || p.Lab.Via == lab.ViaNFTables
	return rules && slices.Contains([]string{"veth", "netkit", "tun"}, p.Link)
}

func hostDevice(t *testing.T, link string) string {
	t.Helper()
	mode, err := podlink.Lookup(link)
	testkit.Succeed(t, err)
	return mode.Traits().HostDevice
}

// contradiction is evidence of a path that is altered in one way, and the finding; empty means no finding.
type contradiction struct {
	id, name string
	spoil    func(*evidence.Observation)
	finding  string
}

// counts returns the counters of a device of the host, which it may not have had.
func counts(w *evidence.Observation, name string) *result.DeviceCount {
	for i := range w.Evidence.Devices {
		if d := &w.Evidence.Devices[i]; d.Host == lab.Host && d.Name == name {
			return d
		}
	}
	w.Evidence.Devices = append(w.Evidence.Devices, result.DeviceCount{Host: lab.Host, Name: name})
	return &w.Evidence.Devices[len(w.Evidence.Devices)-1]
}

func contradictions(t *testing.T) []contradiction {
	return []contradiction{
		{"veth/pod-ip", "no traffic", func(w *evidence.Observation) { w.Measurement.Count = 0 }, "no data was transferred"},
		{"veth/pod-ip", "past the host", func(w *evidence.Observation) { counts(w, "veth-pod-a").TxPackets = 5 },
			"want at least"},
		{"veth/pod-ip", "by loopback", func(w *evidence.Observation) { counts(w, "lo").RxPackets = 1000 },
			"off the path"},
		{"veth/pod-ip", "programs", func(w *evidence.Observation) {
			w.Evidence.ProgramRuns = map[string]uint64{"from_pod": 1}
		}, "programs ran"},
		{"veth/pod-ip", "tracked", func(w *evidence.Observation) { w.Tracked = true }, "tracks"},
		{"veth/pod-ip", "other server",
			func(w *evidence.Observation) { w.Measurement.ServerLocal = w.Measurement.ClientLocal }, "the server's address is"},
		{"veth/cluster-ip/iptables", "no translation", func(w *evidence.Observation) { w.Redirected = false },
			"no translated entry"},
		{"veth/cluster-ip/iptables", "pod's address",
			func(w *evidence.Observation) { w.Measurement.ClientPeer = w.Path.Listen }, "peer is"},
		{"veth/cluster-ip/iptables", "masqueraded",
			func(w *evidence.Observation) { w.Measurement.ServerPeer = netip.MustParseAddrPort("192.168.10.1:1") },
			"server's peer"},
		{"bridge-call-on/pod-ip", "not called", func(w *evidence.Observation) { w.Tracked = false },
			"did not pass the host's rules"},
		{"bridge-call-on/pod-ip", "other port", func(w *evidence.Observation) {
			w.Translated, w.Measurement.ServerPeer = true, netip.AddrPortFrom(w.Measurement.ServerPeer.Addr(), 1)
		}, ""},
		{"bridge-call-on/pod-ip", "redirected", func(w *evidence.Observation) { w.Translated, w.Redirected = true, true },
			"did not pass the host's rules"},
		{"bridge-call-off/pod-ip", "called", func(w *evidence.Observation) { w.Tracked = true }, "tracks"},
		{"macvlan/cluster-ip/iptables", "past the host", func(w *evidence.Observation) {
			counts(w, hostDevice(t, "macvlan")).RxPackets = 9
		}, "want at least"},
		{"macvlan/pod-ip", "by the host", func(w *evidence.Observation) {
			counts(w, hostDevice(t, "macvlan")).RxPackets = 999
		}, "off the path"},
		{"veth+sockmap/pod-ip", "by the devices", func(w *evidence.Observation) { w.Evidence.Devices[0].RxPackets = 1010 },
			"off the path"},
		{"veth+sockmap/pod-ip", "connections by the devices", func(w *evidence.Observation) {
			w.Measurement.Workload, w.Evidence.Devices[0].TxPackets = load.TCPCRR, 4001
		}, "data among them"},
		{"veth+sockmap/pod-ip", "connections past the devices", func(w *evidence.Observation) {
			w.Measurement.Workload, w.Evidence.Devices[0].TxPackets = load.TCPCRR, 2002
		}, ""},
		{"veth+ebpf/pod-ip", "by the stack", func(w *evidence.Observation) {
			counts(w, "veth-pod-a").TxPackets = 1000
		}, "off the path"},
		{"veth+ebpf/pod-ip", "no redirect", func(w *evidence.Observation) { delete(w.Evidence.ProgramRuns, "redirect_peer") },
			"redirect_peer"},
		{"veth+ebpf/cluster-ip", "no program", func(w *evidence.Observation) { w.Evidence.ProgramRuns = nil }, "from_pod"},
		{"veth+ebpf/cluster-ip", "no entry", func(w *evidence.Observation) { w.Evidence.Connections = 0 }, "0 entries"},
		{"veth/cluster-ip/ebpf-socket", "not translated", func(w *evidence.Observation) { w.Evidence.ProgramRuns = nil },
			"sock_connect"},
		{"veth/cluster-ip/ebpf-socket", "per packet", func(w *evidence.Observation) { w.Evidence.Connections = 1 },
			"1 entries"},
		{"ipvlan-l3/pod-ip", "by the host", func(w *evidence.Observation) {
			counts(w, hostDevice(t, "ipvlan-l3")).TxPackets = 999
		}, "off the path"},
		{"netkit+ebpf/pod-ip", "by the stack", func(w *evidence.Observation) {
			counts(w, "veth-pod-b").RxPackets = 999
		}, "off the path"},
		{"tun+ebpf/pod-ip", "past the host", func(w *evidence.Observation) {
			counts(w, "veth-pod-b").RxPackets = 9
		}, "want at least"},
		{"veth+ebpf/cluster-ip", "by the kernel", func(w *evidence.Observation) { w.Tracked = true }, "tracks"},
	}
}

// TestEachContradictionIsFound checks that matching evidence of each kind of path yields no findings, and that each
// single contradiction yields one.
func TestEachContradictionIsFound(t *testing.T) {
	for _, id := range []string{
		"veth/pod-ip", "veth/cluster-ip/iptables", "bridge-call-on/pod-ip", "macvlan/cluster-ip/iptables",
		"veth+ebpf/pod-ip", "veth+ebpf/cluster-ip", "veth/cluster-ip/ebpf-socket", "bridge-call-on/cluster-ip/ebpf-socket",
		"ipvlan-l2/pod-ip", "ipvlan-l2/cluster-ip/iptables", "ipvlan-l3+ebpf/cluster-ip", "netkit/pod-ip",
		"netkit+ebpf/cluster-ip", "veth+sockmap/pod-ip", "ovs-internal/cluster-ip/nftables", "ovs-internal+ebpf/cluster-ip", "tun/pod-ip",
		"tun+ebpf/cluster-ip",
	} {
		o := fitting(t, id)
		testkit.Check(t, len(o.Findings()) == 0, "%s: findings %q, want none", id, o.Findings())
	}
	for _, test := range contradictions(t) {
		t.Run(test.id+" "+test.name, func(t *testing.T) {
			w := fitting(t, test.id)
			test.spoil(&w)
			got := strings.Join(w.Findings(), "; ")
			testkit.Check(t, test.finding != "" || got == "", "findings %q, want none", got)
			testkit.Check(t, strings.Contains(got, test.finding), "findings %q, want %q", got, test.finding)
		})
	}
}

// TestPodIPBesideServiceProxies checks that the rules of a service proxy track the connections of pod IPs that the host
// routes, and no others.
func TestPodIPBesideServiceProxies(t *testing.T) {
	for id, tracked := range map[string]bool{
		"veth/pod-ip": false, "veth/pod-ip/iptables": true, "veth/pod-ip/nftables": true, "veth/pod-ip/ebpf-socket": false,
		"netkit/pod-ip/nftables": true, "tun/pod-ip/iptables": true, "bridge-call-on/pod-ip/nftables": true,
		"bridge-call-off/pod-ip/iptables": false, "macvlan/pod-ip/iptables": false, "ipvlan-l2/pod-ip/nftables": false,
		"ipvlan-l3s/pod-ip/nftables": false, "ovs-veth/pod-ip/iptables": false,
	} {
		o := fitting(t, id)
		testkit.Check(t, o.Tracked == tracked && len(o.Findings()) == 0,
			"%s: tracked %t, findings %q", id, o.Tracked, o.Findings())
		o.Tracked = !tracked
		testkit.Check(t, len(o.Findings()) == 1, "%s, tracked %t: findings %q, want one", id, o.Tracked, o.Findings())
		o.Tracked, o.Redirected = tracked, true
		redirected := len(o.Findings()) > 0
		testkit.Check(t, !tracked || redirected, "%s: a redirected connection has no finding", id)
	}
}

// TestSideBySide checks flows that share a lab. Counters must hold the packets of all flows, and a device that
// another flow crosses is not off the path.
func TestSideBySide(t *testing.T) {
	podIP, service := fitting(t, "veth+ebpf/pod-ip"), fitting(t, "veth+ebpf/cluster-ip")
	service.Measurement.ClientLocal = netip.MustParseAddrPort("192.168.10.11:40001")
	service.Measurement.ServerPeer = service.Measurement.ClientLocal
	both := podIP
	both.Evidence.Devices, both.Evidence.ProgramRuns = nil, map[string]uint64{}
	evidence.Merge(&both.Evidence, podIP.Evidence)
	evidence.Merge(&both.Evidence, service.Evidence)
	both.Evidence.Connections = 0
	for i, findings := range evidence.FindingsSideBySide(both, service) {
		testkit.Check(t, len(findings) == 0, "flow %d: %q", i, findings)
	}
	for i, findings := range evidence.FindingsSideBySide(podIP, service) {
		testkit.Check(t, len(findings) != 0, "flow %d: no finding, though the counters hold the packets of one flow", i)
	}

	pods, loopback := fitting(t, "veth/pod-ip"), fitting(t, "veth/pod-ip")
	loopback.Path = find(t, "loopback")
	loopback.Measurement.ClientPeer, loopback.Measurement.ServerLocal = loopback.Path.Connect, loopback.Path.Listen
	alone := evidence.FindingsSideBySide(pods)
	testkit.Check(t, len(alone[0]) == 0, "alone: %q", alone[0])
	pods.Evidence.Devices = append(pods.Evidence.Devices, result.DeviceCount{Host: lab.Host, Name: "lo", RxPackets: 1010,
		TxPackets: 1010})
	alone = evidence.FindingsSideBySide(pods)
	testkit.Check(t, len(alone[0]) != 0, "packets on lo, which no flow crosses: no finding")
	for i, findings := range evidence.FindingsSideBySide(pods, loopback) {
		testkit.Check(t, len(findings) == 0, "flow %d beside loopback: %q", i, findings)
	}
}

// streaming returns the observation of a TCP stream of 1 GB in packets of that many bytes.
func streaming(t *testing.T, id string, bytes uint64) evidence.Observation {
	t.Helper()
	o := fitting(t, id)
	o.Measurement.Workload, o.Measurement.Count = load.TCPStream, 1e9
	for i := range o.Evidence.Devices {
		d := &o.Evidence.Devices[i]
		d.RxPackets, d.TxPackets = 1e9/bytes, 1e9/bytes
	}
	for program := range o.Evidence.ProgramRuns {
		o.Evidence.ProgramRuns[program] = 1e9 / bytes
	}
	return o
}

// TestBigTCPIsProved rejects a path with BIG TCP to a device that does not take its packets. If both devices take
// them, it accepts streams in packets of any size.
func TestBigTCPIsProved(t *testing.T) {
	for _, id := range []string{"veth+big-tcp/pod-ip", "macvlan+big-tcp/pod-ip"} {
		for _, bytes := range []uint64{262144, 65000, 1448} {
			got := streaming(t, id, bytes).Findings()
			testkit.Check(t, len(got) == 0, "%s, packets of %d bytes: findings %q", id, bytes, got)
		}
		o := streaming(t, id, 262144)
		o.Small = []string{lab.PodA}
		if got := o.Findings(); len(got) != 1 || !strings.Contains(got[0], "pod-a takes no packets of BIG TCP") {
			t.Errorf("%s: findings %q", id, got)
		}
	}
}
