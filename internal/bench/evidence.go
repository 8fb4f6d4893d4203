// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"net/netip"

	"mustang/internal/lab"
	"mustang/internal/podlink"
	"mustang/internal/result"
	"mustang/internal/traffic"
)

// witness is what is known of one sample.
type witness struct {
	path
	evidence    result.Evidence
	measurement traffic.Measurement
	// tracked and translated say whether the kernel's connection tracking in the
	// host had an entry of the client's connection, and one that changes an address.
	tracked, translated bool
}

// maxSegment is the most bytes that one packet between devices can stand for
// (GSO), in bytes.
const maxSegment = 65536

// packets is the least number of packets that must have gone each way past each
// device on the path. A stream's acknowledgements may be few.
func (w witness) packets() (forth, back uint64) {
	if w.measurement.Workload == traffic.TCPStream {
		return w.measurement.Count / maxSegment, 1
	}
	return w.measurement.Count, w.measurement.Count
}

// stray is the number of packets that a device off the path may count: neighbour
// discovery, the opening of the connection, the report at its end.
func (w witness) stray() uint64 {
	forth, _ := w.packets()
	return 20 + forth/50
}

// findings lists what does not fit the path, in words; nothing when all does.
func (w witness) findings() []string {
	var out []string
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if w.measurement.Count == 0 {
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
	hidden := w.masqueraded()
	if !hidden && m.ServerPeer != m.ClientLocal {
		add("the server's peer is %s instead of %s", m.ServerPeer, m.ClientLocal)
	}
	if hidden && m.ServerPeer.Addr() != lab.Gateways[0].Addr() {
		add("the server's peer is %s instead of the host's %s", m.ServerPeer, lab.Gateways[0].Addr())
	}
}

// masqueraded reports whether the host hides the client's address from the
// server.
func (w witness) masqueraded() bool {
	return w.target == result.TargetClusterIP && w.datapath() == result.DatapathKernel &&
		(w.link == "macvlan" || w.variant == "call-off")
}

// checkDevices compares the packets at each device with those that the path has
// or must not have there.
func (w witness) checkDevices(add adder) {
	forth, back := w.packets()
	on := func(place, name string, rx, tx uint64) {
		if d := seen(w.evidence, place, name); d.RxPackets < rx || d.TxPackets < tx {
			add("too few packets at %s, the path has at least %d and %d", describe(d), rx, tx)
		}
	}
	off := func(place, name string, rx, tx bool) {
		d := seen(w.evidence, place, name)
		if (rx && d.RxPackets > w.stray()) || (tx && d.TxPackets > w.stray()) {
			add("packets at %s, which is not on the path", describe(d))
		}
	}
	if w.target == result.TargetLoopback {
		on(lab.Host, "lo", forth, forth)
		off(lab.PodA, lab.IfName, true, true)
		return
	}
	on(lab.PodA, lab.IfName, forth, back)
	if w.client == lab.PodB {
		on(lab.PodB, lab.IfName, back, forth)
	}
	sideA, sideB := lab.HostIfName(lab.PodA), lab.HostIfName(lab.PodB)
	through := w.target == result.TargetClusterIP && w.datapath() == result.DatapathKernel
	switch {
	case w.link == "macvlan" && through:
		on(lab.Host, podlink.HostSlave, forth+back, forth+back)
	case w.link == "macvlan":
		off(lab.Host, podlink.HostSlave, true, true)
	case w.datapath() == result.DatapathEBPF:
		// Redirected to the peer: in at the one side, never out at the other.
		on(lab.Host, sideB, forth, 0)
		on(lab.Host, sideA, back, 0)
		off(lab.Host, sideA, false, true)
		off(lab.Host, sideB, false, true)
	default:
		on(lab.Host, sideA, back, forth)
		if w.client == lab.PodB {
			on(lab.Host, sideB, forth, back)
		}
	}
	if w.link != "macvlan" {
		off(lab.Host, "lo", true, true)
	}
}

// checkConnections compares the entries of the connection tables: the kernel's
// and our own.
func (w witness) checkConnections(add adder) {
	switch {
	case w.via == result.ViaIPTables || w.via == result.ViaNFTables:
		if !w.translated {
			add("the kernel's connection table has no translated entry of it")
		}
	case w.lab.NetfilterCall:
		if !w.tracked || w.translated {
			add("the bridged packets did not pass the host's rules (tracked %t, translated %t)", w.tracked, w.translated)
		}
	case w.tracked:
		add("the kernel tracks the connection, which should pass its rules by")
	}
	ours := w.via == result.ViaEBPFTC
	if ours != (w.evidence.Connections > 0) {
		add("%d entries of it in the eBPF connection table", w.evidence.Connections)
	}
}

// checkPrograms compares the runs of our programs.
func (w witness) checkPrograms(add adder) {
	if w.datapath() != result.DatapathEBPF {
		if len(w.evidence.ProgramRuns) > 0 {
			add("eBPF programs ran: %v", w.evidence.ProgramRuns)
		}
		return
	}
	forth, back := w.packets()
	least := map[string]uint64{"from_pod": forth + back}
	if w.link == "veth" {
		least["redirect_peer"] = forth + back
	}
	if w.via == result.ViaEBPFTC {
		least["forward"], least["reverse"] = forth, back
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
