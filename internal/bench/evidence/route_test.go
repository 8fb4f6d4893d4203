// SPDX-License-Identifier: Apache-2.0

package evidence_test

import (
	"net/netip"
	"slices"
	"testing"

	"mustang/internal/bench/evidence"
	"mustang/internal/bench/suites"
	"mustang/internal/lab"
	"mustang/internal/load"
	"mustang/internal/result"
	"mustang/internal/testkit"
)

// uplink is the device through which labs reach a peer.
var uplink = lab.UplinkDevice{
	Name: "eth1", Host: netip.MustParsePrefix("10.7.0.50/24"), Pod: netip.MustParsePrefix("10.7.0.51/24"),
}

func routed() map[string]evidence.Path {
	paths := map[string]evidence.Path{}
	for _, suite := range suites.List() {
		for _, p := range suite.Paths {
			if p.Route != nil {
				for i, step := range p.Route.Steps {
					if step.LinkOf != "" { // a running lab has its name
						p.Route.Steps[i].Name = "veth-" + step.LinkOf
					}
				}
				paths[suite.Name+": "+p.ID] = p.Path
			}
			if p = p.ToPeer(uplink); p.Lab.Topology == lab.TopologyPodToNetwork {
				paths["peer: "+p.ID] = p.Path
			}
		}
	}
	return paths
}

// along returns the observation of 1,000 transactions that took the path's route.
func along(p evidence.Path) evidence.Observation {
	client := netip.MustParseAddrPort("192.0.2.7:40000")
	o := evidence.Observation{Path: p, Measurement: load.Measurement{
		Workload: load.TCPRR, Count: 1000, ClientLocal: client, ClientPeer: p.Connect, ServerLocal: p.Listen,
		ServerPeer: client,
	}}
	if p.Route.SeenAs.IsValid() {
		o.Measurement.ServerPeer = netip.AddrPortFrom(p.Route.SeenAs, 40000)
	}
	o.Tracked = p.Route.TranslatedAt != ""
	o.Translated = o.Tracked
	for _, step := range p.Route.Steps {
		o.Evidence.Devices = append(o.Evidence.Devices, result.DeviceCount{Host: step.Place, Name: step.Name, RxPackets: 1010,
			TxPackets: 1010})
	}
	o.Evidence.ProgramRuns = map[string]uint64{}
	for _, name := range p.Route.Programs {
		o.Evidence.ProgramRuns[name] = 1010
	}
	if p.Via == result.ViaEBPFSocket {
		o.Evidence.ProgramRuns["sock_connect"] = 1
	}
	return o
}

// TestEachDeviceOfRouteIsChecked checks that evidence along a route yields no findings. Evidence without one of its
// devices, or with one that the route avoids, yields one.
func TestEachDeviceOfRouteIsChecked(t *testing.T) {
	testkit.Require(t, len(routed()) >= 30, "only %d paths with a route", len(routed()))
	for name, p := range routed() {
		t.Run(name, func(t *testing.T) {
			findings := along(p).Findings()
			testkit.Require(t, len(findings) == 0, "findings along the route: %q", findings)
			testkit.Check(t, len(p.Route.Steps) != 0, "the route has no devices")
			wrong := func(what string, change func(*evidence.Observation)) {
				w := along(p)
				change(&w)
				testkit.Check(t, len(w.Findings()) != 0, "no finding for: %s", what)
			}
			for i, step := range p.Route.Steps {
				wrong("no packets at "+step.Name+" in "+
					step.Place, func(w *evidence.Observation) { w.Evidence.Devices[i].RxPackets = 3 })
				wrong("none sent at "+step.Name+" in "+
					step.Place, func(w *evidence.Observation) { w.Evidence.Devices[i].TxPackets = 3 })
			}
			for _, d := range slices.Concat(p.Route.Avoids, p.Route.Unsent) {
				wrong("packets at "+d.Name, func(w *evidence.Observation) {
					w.Evidence.Devices = append(w.Evidence.Devices, result.DeviceCount{Host: d.Place, Name: d.Name, TxPackets: 1000})
				})
			}
			wrong("another peer at the server",
				func(w *evidence.Observation) { w.Measurement.ServerPeer = netip.MustParseAddrPort("192.0.2.99:1") })
			wrong("another server",
				func(w *evidence.Observation) { w.Measurement.ServerLocal = netip.MustParseAddrPort("192.0.2.99:1") })
			if p.Route.TranslatedAt != "" {
				wrong("no address is translated", func(w *evidence.Observation) { w.Translated = false })
			}
			if p.Via == result.ViaEBPFSocket {
				wrong("no socket is translated", func(w *evidence.Observation) { w.Evidence.ProgramRuns = nil })
			}
			for _, name := range p.Route.Programs {
				wrong(name+" did not run", func(w *evidence.Observation) { w.Evidence.ProgramRuns[name] = 3 })
			}
		})
	}
}

// TestPeerIsReachedThroughUplink checks the path from this machine itself to a peer: via the uplink, or via any
// device but lo if the uplink is unknown.
func TestPeerIsReachedThroughUplink(t *testing.T) {
	found, err := suites.Lookup("latency")
	testkit.Succeed(t, err)
	for _, test := range []struct {
		uplink lab.UplinkDevice
		device string
		fits   bool
	}{
		{lab.UplinkDevice{}, "eth0", true}, {lab.UplinkDevice{}, "lo", false},
		{uplink, "eth1", true}, {uplink, "eth0", false}, {uplink, "lo", false},
	} {
		p := found[0].Paths[0].ToPeer(test.uplink)
		testkit.Require(t, p.HostToHost() && p.Lab.Topology != lab.TopologyPodToNetwork,
			"%s has topology %s", p.ID, p.Lab.Topology)
		o := along(p.Path)
		o.Path.Ends = &evidence.Ends{} // agents in pods: no device of this machine
		findings := o.FindingsFromMachine()
		testkit.Check(t, len(findings) == 0, "between pods of a cluster: %q", findings)
		o.Path.Ends = nil
		o.Evidence.Devices = []result.DeviceCount{{Host: evidence.ThisMachine, Name: test.device, RxPackets: 1010,
			TxPackets: 1010}}
		if findings := o.FindingsFromMachine(); (len(findings) == 0) != test.fits {
			t.Errorf("uplink %q, through %s: %q", test.uplink.Name, test.device, findings)
		}
		o.Measurement.ClientPeer = netip.MustParseAddrPort("192.0.2.99:1")
		testkit.Check(t, len(o.FindingsFromMachine()) != 0, "no finding for another peer")
	}
}
