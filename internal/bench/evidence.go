// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"net/netip"

	"mustang/internal/lab"
	"mustang/internal/result"
	"mustang/internal/traffic"
)

// witness is what is known of one sample.
type witness struct {
	path
	// flooded is whether datagrams were offered at a rate that may be more than the
	// path can carry, so that none arriving is a result.
	flooded     bool
	evidence    result.Evidence
	measurement traffic.Measurement
	// tracked and translated say whether the kernel's connection tracking in the
	// host had an entry of the client's connection, and one that changes an address.
	tracked, translated bool
	// switching is the datapath of the lab's Open vSwitch, if it has one.
	switching string
	// devices are the true names of the pods' devices, where they are not lab.IfName.
	devices map[string]string
}

// packets is the least number of packets that must have gone each way past each
// device on the path. A stream's acknowledgements may be few.
func (w witness) packets() (forth, back uint64) {
	return w.measurement.Packets()
}

// stray is the number of packets that a device off the path may count: neighbour
// discovery, the opening of the connection, the report at its end; of streams, what
// the one before had under way.
func (w witness) stray() uint64 {
	forth, _ := w.packets()
	if w.measurement.Workload != traffic.TCPRR {
		return 60 + forth/50
	}
	return 20 + forth/50
}

// findings lists what does not fit the path, in words; nothing when all does.
func (w witness) findings() []string {
	var out []string
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if w.measurement.Count == 0 && !w.flooded {
		add("nothing was transferred")
	}
	w.checkAddresses(add)
	w.checkDevices(add)
	w.checkConnections(add)
	w.checkPrograms(add)
	return out
}

type adder func(format string, args ...any)

// checkAddresses compares what both ends see of each other.
func (w witness) checkAddresses(add adder) {
	m := w.measurement
	if m.ClientPeer != w.connect {
		add("the client's peer is %s instead of %s", m.ClientPeer, w.connect)
	}
	if m.ServerLocal != w.listen {
		add("the server was reached at %s instead of %s", m.ServerLocal, w.listen)
	}
	seenAs := w.seenAs()
	// A kernel that translates addresses changes the client's port too if another
	// connection of late had the same.
	samePort := m.ServerPeer.Port() == m.ClientLocal.Port() || w.translated
	if !seenAs.IsValid() && (m.ServerPeer.Addr() != m.ClientLocal.Addr() || !samePort) {
		add("the server's peer is %s instead of %s", m.ServerPeer, m.ClientLocal)
	}
	if seenAs.IsValid() && m.ServerPeer.Addr() != seenAs {
		add("the server's peer is %s instead of the host's %s", m.ServerPeer, seenAs)
	}
}

// seenAs is the client's address in the eyes of the server, if not its own.
func (w witness) seenAs() netip.Addr {
	switch {
	case w.route != nil:
		return w.route.seenAs
	case w.masqueraded():
		return lab.Gateways[0].Addr()
	}
	return netip.Addr{}
}

// checkConnections compares the entries of the connection tables: the kernel's
// and our own.
func (w witness) checkConnections(add adder) {
	switch {
	case w.route != nil && w.route.translatedAt != "":
		if !w.translated {
			add("the connection table of %s has no translated entry of it", w.route.translatedAt)
		}
	case w.lab.Topology == dockerTopology: // whose rules track all that passes the host
	case w.via == result.ViaIPTables || w.via == result.ViaNFTables:
		if !w.translated {
			add("the kernel's connection table has no translated entry of it")
		}
	case w.lab.NetfilterCall && w.lab.Via != lab.ViaEBPFSocket: // which needs no rules
		if !w.tracked || w.translated {
			add("the bridged packets did not pass the host's rules (tracked %t, translated %t)", w.tracked, w.translated)
		}
	case w.tracked:
		add("the kernel tracks the connection, which should pass its rules by")
	}
	ours := w.via == result.ViaEBPFTC // at the socket no packet has a connection to keep
	if ours != (w.evidence.Connections > 0) {
		add("%d entries of it in the eBPF connection table", w.evidence.Connections)
	}
}

// checkPrograms compares the runs of our programs.
func (w witness) checkPrograms(add adder) {
	forth, back := w.packets()
	least := map[string]uint64{}
	switch {
	case w.route != nil:
		for _, name := range w.route.programs {
			least[name] = forth
		}
	case w.datapath() == result.DatapathEBPF:
		least["from_pod"] = forth + back
		if w.anatomy().delivery == toPeer {
			least["redirect_peer"] = forth + back
		}
	}
	switch w.via {
	case result.ViaEBPFTC:
		least["forward"], least["reverse"] = forth, back
	case result.ViaEBPFSocket:
		least["sock_connect"] = 1
	}
	if len(least) == 0 && len(w.evidence.ProgramRuns) > 0 {
		add("eBPF programs ran: %v", w.evidence.ProgramRuns)
	}
	for name, runs := range least {
		if got := w.evidence.ProgramRuns[name]; got < runs {
			add("eBPF counter %s rose by %d, the path has at least %d", name, got, runs)
		}
	}
}

// addresses puts what both ends saw into the evidence.
func addresses(e *result.Evidence, m traffic.Measurement) {
	text := func(local, peer netip.AddrPort) result.Addresses {
		return result.Addresses{Local: local.String(), Peer: peer.String()}
	}
	e.Client, e.Server = text(m.ClientLocal, m.ClientPeer), text(m.ServerLocal, m.ServerPeer)
}
