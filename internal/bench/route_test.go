// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"net/netip"
	"testing"

	"mustang/internal/lab"
	"mustang/internal/result"
	"mustang/internal/traffic"
)

// uplink is what labs on the way to a peer share.
var uplink = lab.Parent{
	Device: "eth1", Host: netip.MustParsePrefix("10.7.0.50/24"), Pod: netip.MustParsePrefix("10.7.0.51/24"),
}

// routed returns all paths with a route, and those that lead to a peer.
func routed() []path {
	var paths []path
	for _, suite := range Suites() {
		for _, p := range suite.paths {
			if p.route != nil {
				p.id = suite.Name + ": " + p.id
				paths = append(paths, p)
			}
		}
	}
	for _, p := range latency().paths {
		if p = (PeerOptions{Uplink: uplink}).way(p); p.lab.Topology == podToNetwork {
			p.id = "peer: " + p.id
			paths = append(paths, p)
		}
	}
	return paths
}

// along returns a witness of 1,000 transactions that took the path's route.
func along(p path) witness {
	client := netip.MustParseAddrPort("192.0.2.7:40000")
	w := witness{path: p, measurement: traffic.Measurement{
		Workload: traffic.TCPRR, Count: 1000, ClientLocal: client, ClientPeer: p.connect, ServerLocal: p.listen, ServerPeer: client,
	}}
	if p.route.seenAs.IsValid() {
		w.measurement.ServerPeer = netip.AddrPortFrom(p.route.seenAs, 40000)
	}
	w.tracked = p.route.translatedAt != ""
	w.translated = w.tracked
	for _, h := range p.route.hops {
		w.evidence.Devices = append(w.evidence.Devices, result.DeviceCount{Host: h.place, Name: h.name, RxPackets: 1010, TxPackets: 1010})
	}
	w.evidence.ProgramRuns = map[string]uint64{}
	for _, name := range p.route.programs {
		w.evidence.ProgramRuns[name] = 1010
	}
	if p.via == result.ViaEBPFSocket {
		w.evidence.ProgramRuns["sock_connect"] = 1
	}
	return w
}

// TestRoutes checks that what took a route fits it, and that what missed one of its
// devices, or passed one that is not on it, does not.
func TestRoutes(t *testing.T) {
	if len(routed()) < 30 {
		t.Fatalf("only %d paths with a route", len(routed()))
	}
	for _, p := range routed() {
		t.Run(p.id, func(t *testing.T) {
			if findings := along(p).findings(); len(findings) > 0 {
				t.Fatalf("what took the route does not fit: %q", findings)
			}
			if len(p.route.hops) == 0 {
				t.Error("a route without devices proves nothing")
			}
			wrong := func(what string, change func(*witness)) {
				w := along(p)
				change(&w)
				if len(w.findings()) == 0 {
					t.Errorf("%s, and nothing is found", what)
				}
			}
			for i, h := range p.route.hops {
				wrong("no packets at "+h.name+" in "+h.place, func(w *witness) { w.evidence.Devices[i].RxPackets = 3 })
				wrong("none sent at "+h.name+" in "+h.place, func(w *witness) { w.evidence.Devices[i].TxPackets = 3 })
			}
			for _, d := range p.route.avoids {
				wrong("packets at "+d.name, func(w *witness) {
					w.evidence.Devices = append(w.evidence.Devices, result.DeviceCount{Host: d.place, Name: d.name, TxPackets: 1000})
				})
			}
			wrong("another peer at the server", func(w *witness) { w.measurement.ServerPeer = netip.MustParseAddrPort("192.0.2.99:1") })
			wrong("another server", func(w *witness) { w.measurement.ServerLocal = netip.MustParseAddrPort("192.0.2.99:1") })
			if p.route.translatedAt != "" {
				wrong("no address is translated", func(w *witness) { w.translated = false })
			}
			if p.via == result.ViaEBPFSocket {
				wrong("no socket is translated", func(w *witness) { w.evidence.ProgramRuns = nil })
			}
			for _, name := range p.route.programs {
				wrong(name+" did not run", func(w *witness) { w.evidence.ProgramRuns[name] = 3 })
			}
		})
	}
}

// TestFromHere checks the way from this machine itself to a peer: by the uplink if
// one is named, else by any device but lo.
func TestFromHere(t *testing.T) {
	for _, test := range []struct {
		parent lab.Parent
		device string
		fits   bool
	}{
		{lab.Parent{}, "eth0", true}, {lab.Parent{}, "lo", false},
		{uplink, "eth1", true}, {uplink, "eth0", false}, {uplink, "lo", false},
	} {
		p := PeerOptions{Uplink: test.parent}.way(latency().paths[0])
		if !p.fromHost() || p.lab.Topology == podToNetwork {
			t.Fatalf("%s leads from %s", p.id, p.lab.Topology)
		}
		w := along(p)
		w.evidence.Devices = []result.DeviceCount{{Host: thisMachine, Name: test.device, RxPackets: 1010, TxPackets: 1010}}
		if findings := w.fromHere(); (len(findings) == 0) != test.fits {
			t.Errorf("uplink %q, by %s: %q", test.parent.Device, test.device, findings)
		}
		w.measurement.ClientPeer = netip.MustParseAddrPort("192.0.2.99:1")
		if len(w.fromHere()) == 0 {
			t.Error("another peer, and nothing is found")
		}
	}
}

// TestSuites checks that IDs are unique, and that pairs are of rows that there are.
func TestSuites(t *testing.T) {
	for _, s := range Suites() {
		ids := map[string]bool{}
		for _, p := range s.paths {
			if ids[p.id] {
				t.Errorf("%s: %s appears twice", s.Name, p.id)
			}
			ids[p.id] = true
		}
		again := 0
		for _, p := range s.pairs {
			if !ids[p.numerator] || !ids[p.denominator] {
				t.Errorf("%s: pair %q of %q and %q: no such rows", s.Name, p.name, p.numerator, p.denominator)
			}
			if p.aa {
				again++
			}
		}
		if again == 0 {
			t.Errorf("%s: nothing is measured twice", s.Name)
		}
		if len(s.workloads) == 0 {
			t.Errorf("%s: no workloads", s.Name)
		}
	}
	if _, err := LookupSuites("nope"); err == nil {
		t.Error("suite nope is found")
	}
	if all, err := LookupSuites(All); err != nil || len(all) != len(Suites()) {
		t.Errorf("all: %d suites, %v", len(all), err)
	}
}
