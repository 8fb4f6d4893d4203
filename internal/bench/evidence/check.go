// SPDX-License-Identifier: Apache-2.0

package evidence

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"mustang/internal/lab"
	"mustang/internal/load"
	"mustang/internal/podlink"
	"mustang/internal/result"
	"mustang/internal/rtnl"
)

type sampleCheck struct {
	Path
	mayLoseAll  bool // see Flow.MayLoseAll
	fromMachine bool // to another machine, without a lab
	measurement load.Measurement
	evidence    result.Evidence
	// tracked is true if the kernel's connection tracking had an entry of the client's
	// connection, translated if one changed an address or a port, and redirected if one
	// changed the destination.
	tracked, translated, redirected bool
	// ovsDatapath is the datapath of the lab's Open vSwitch, if it has one.
	ovsDatapath string
	// devices are the true names of the pods' devices, where they are not lab.IfName.
	devices map[string]string
	// small are the ends whose devices should take packets of BIG TCP, and do not.
	small []string
	// others are the demands of the flows that ran side by side with this one.
	others []demands
	// collected, if not nil, takes the demands of this flow instead of checking them.
	collected *demands
}

// demands are the least increases of counters that a flow's path implies.
type demands struct {
	devices  map[Device]result.DeviceCount
	programs map[string]uint64
	rules    map[string]uint64
}

func (c *sampleCheck) demands() demands {
	d := demands{devices: map[Device]result.DeviceCount{}}
	collector := *c
	collector.collected = &d
	if !c.fromMachine {
		collector.checkDevices()
		d.programs, d.rules = c.programs(), c.rules()
	}
	return d
}

// packets returns the least number of packets that must have crossed each device of
// the path in each direction.
func (c *sampleCheck) packets() (toServer, toClient uint64) {
	toServer, toClient = c.measurement.Packets()
	if !c.Lab.BigTCP || c.measurement.Workload != load.TCPStream {
		return toServer, toClient
	}
	if c.measurement.Reverse {
		return toServer, c.measurement.Count / rtnl.BigTCPBytes
	}
	return c.measurement.Count / rtnl.BigTCPBytes, toClient
}

// strayLimit returns the number of packets that a device off the path may count:
// neighbour discovery, the connection's setup, the report at its end, and what a
// previous stream had in flight.
func (c *sampleCheck) strayLimit() uint64 {
	toServer, _ := c.packets()
	if c.measurement.Workload != load.TCPRR {
		return 60 + toServer/50
	}
	return 20 + toServer/50
}

func (c *sampleCheck) add(format string, args ...any) {
	c.evidence.Findings = append(c.evidence.Findings, fmt.Sprintf(format, args...))
}

// check adds a finding for each contradiction between evidence and path.
func (c *sampleCheck) check() {
	c.checkTransfer()
	switch {
	case c.Ends != nil:
		c.checkEnds()
		return
	case c.fromMachine:
		c.checkFromMachine()
		return
	}
	c.checkAddresses()
	c.checkDevices()
	c.checkConnections()
	c.checkPrograms()
	c.checkPolicy()
	c.checkBigTCP()
}

func (c *sampleCheck) checkTransfer() {
	if c.measurement.Count == 0 && !c.mayLoseAll {
		c.add("no data was transferred")
	}
}

// checkAddresses checks the addresses that client and server see of each other.
func (c *sampleCheck) checkAddresses() {
	m := c.measurement
	if m.ClientPeer != c.Connect {
		c.add("the client's peer is %s, want %s", m.ClientPeer, c.Connect)
	}
	if m.ServerLocal != c.Listen {
		c.add("the server's address is %s, want %s", m.ServerLocal, c.Listen)
	}
	seenAs := c.seenAs()
	if seenAs.IsValid() && m.ServerPeer.Addr() != seenAs {
		c.add("the server's peer is %s, want the host's address %s", m.ServerPeer, seenAs)
	}
	// Address translation, the kernel's and that of eBPF, changes the client's port too if a
	// recent connection had the same one.
	samePort := m.ServerPeer.Port() == m.ClientLocal.Port() || c.translated || c.evidence.ProgramRuns["port_changed"] > 0
	if !seenAs.IsValid() && (m.ServerPeer.Addr() != m.ClientLocal.Addr() || !samePort) {
		c.add("the server's peer is %s, want %s", m.ServerPeer, m.ClientLocal)
	}
}

// seenAs returns the client's address as seen by the server, the zero address if it is
// the client's own.
func (c *sampleCheck) seenAs() netip.Addr {
	switch {
	case c.Route != nil:
		return c.Route.SeenAs
	case c.Masqueraded():
		return lab.Gateways[c.family()].Addr()
	}
	return netip.Addr{}
}

// checkConnections checks the entries of both connection tables, the kernel's and the
// eBPF one.
func (c *sampleCheck) checkConnections() {
	switch {
	case c.Route != nil && c.Route.TranslatedAt != "":
		if !c.translated {
			c.add("the connection table of %s: no translated entry of the connection", c.Route.TranslatedAt)
		}
	case c.Lab.Topology == lab.TopologyDocker: // Docker's rules track all connections of the host
	case c.translatedByRules():
		if !c.redirected {
			c.add("the kernel's connection table: no translated entry of the connection")
		}
	case c.Lab.NetfilterCall && c.Lab.Via != lab.ViaEBPFSocket: // which has no rules
		// The source port may have changed: see checkAddresses.
		if !c.tracked || c.redirected {
			c.add("the bridged packets did not pass the host's rules (tracked %t, redirected %t)", c.tracked, c.redirected)
		}
	case c.passesRules():
		if !c.tracked || c.redirected {
			c.add("the kernel's connection table: no entry of the connection, which passes the rules of the service proxy (redirected %t)", c.redirected)
		}
	case c.policyRules():
		if !c.tracked || c.redirected {
			c.add("the kernel's connection table: no entry of the connection, which the rules of the policy track (redirected %t)", c.redirected)
		}
	case c.tracked:
		c.add("the kernel tracks the connection, which should bypass its rules")
	}
	perPacket := c.Via == result.ViaEBPFTC || c.Lab.Policy == lab.ViaEBPFTC // translation at the socket has no entries
	if perPacket != (c.evidence.Connections > 0) {
		c.add("the eBPF connection table has %d entries of the connection", c.evidence.Connections)
	}
}

// programs returns the least increases of the eBPF counters of the path's programs.
func (c *sampleCheck) programs() map[string]uint64 {
	toServer, toClient := c.packets()
	least := map[string]uint64{}
	switch {
	case c.Route != nil:
		for _, name := range c.Route.Programs {
			least[name] = toServer
		}
	case c.Datapath() == result.DatapathEBPF:
		least["from_pod"] = toServer + toClient
		if c.traits().DeliveryOn(c.ovsDatapath) == podlink.DeliverToPeer {
			least["redirect_peer"] = toServer + toClient
		}
	}
	switch c.Via {
	case result.ViaEBPFTC:
		least["forward"], least["reverse"] = toServer, toClient
	case result.ViaEBPFSocket:
		least["sock_connect"] = 1
	}
	if c.Lab.Policy == lab.ViaEBPFTC {
		least["tracked"], least["drop_policy_ingress"] = c.connections(), 1
	}
	return least
}

// checkPrograms checks that the path's eBPF programs ran, or none where it has none.
func (c *sampleCheck) checkPrograms() {
	own := c.programs()
	least := maps.Clone(own)
	for _, other := range c.others {
		for name, runs := range other.programs {
			least[name] += runs
		}
	}
	if len(least) == 0 && len(c.evidence.ProgramRuns) > 0 {
		c.add("eBPF programs ran: %v", c.evidence.ProgramRuns)
	}
	for name := range own {
		if got := c.evidence.ProgramRuns[name]; got < least[name] {
			c.add("eBPF counter %s increased by %d, want at least %d", name, got, least[name])
		}
	}
}

// checkFromMachine checks a path from this machine itself to another one: its packets
// leave by the uplink, or by any device but lo if none is known. The other machine's
// address may be translated.
func (c *sampleCheck) checkFromMachine() {
	if peer := c.measurement.ClientPeer; peer != c.Connect {
		c.add("the client's peer is %s, want %s", peer, c.Connect)
	}
	uplink := c.Lab.Uplink.Name
	toServer, toClient := c.packets()
	crossed := func(d result.DeviceCount) bool {
		return d.Name != "lo" && (uplink == "" || d.Name == uplink) && d.TxPackets >= toServer && d.RxPackets >= toClient
	}
	switch {
	case slices.ContainsFunc(c.evidence.Devices, crossed):
	case uplink != "":
		c.add("%s sent less than %d packets, or received less than %d", uplink, toServer, toClient)
	default:
		c.add("no device but lo sent %d packets and received %d", toServer, toClient)
	}
}

// checkDevices compares the packets at each device with the path.
func (c *sampleCheck) checkDevices() {
	switch {
	case c.Route != nil:
		c.checkRoute()
	case c.Target == result.TargetLoopback:
		c.checkLoopback()
	default:
		c.checkPodDevices()
		c.checkHostSide()
		c.checkHostDevice()
	}
}

func (c *sampleCheck) checkRoute() {
	toServer, toClient := c.packets()
	for _, step := range c.Route.Steps {
		switch step.toServer {
		case received:
			c.expect(step.Device, toServer, toClient)
		case sent:
			c.expect(step.Device, toClient, toServer)
		default:
			c.expect(step.Device, toServer, toServer)
		}
	}
	for _, d := range c.Route.Avoids {
		c.expectNone(d, both)
	}
}

// checkLoopback checks a path that crosses the host's loopback device only.
func (c *sampleCheck) checkLoopback() {
	toServer, _ := c.packets()
	c.expect(Device{Place: lab.Host, Name: "lo"}, toServer, toServer)
	c.expectNone(c.podDevice(lab.PodA), both)
}

func (c *sampleCheck) checkPodDevices() {
	toServer, toClient := c.packets()
	c.expect(c.podDevice(lab.PodA), toServer, toClient)
	if c.Client == lab.PodB {
		c.expect(c.podDevice(lab.PodB), toClient, toServer)
	}
}

func (c *sampleCheck) podDevice(pod string) Device {
	if name, ok := c.devices[pod]; ok {
		return Device{Place: pod, Name: name}
	}
	return Device{Place: pod, Name: lab.IfName}
}

// checkHostSide checks the host's ends of the pods' links. With the eBPF datapath,
// programs redirect packets so that they bypass some of these.
func (c *sampleCheck) checkHostSide() {
	traits := c.traits()
	if !traits.HostSide {
		return
	}
	toServer, toClient := c.packets()
	sideA := Device{Place: lab.Host, Name: lab.HostIfName(lab.PodA)}
	sideB := Device{Place: lab.Host, Name: lab.HostIfName(lab.PodB)}
	delivery := traits.DeliveryOn(c.ovsDatapath)
	switch ebpf := c.Datapath() == result.DatapathEBPF; {
	case ebpf && delivery == podlink.DeliverToPeer:
		c.expect(sideB, toServer, 0)
		c.expect(sideA, toClient, 0)
		c.expectNone(sideA, sent)
		c.expectNone(sideB, sent)
	case ebpf && delivery == podlink.DeliverFromPeer:
		c.expect(sideA, 0, toServer)
		c.expect(sideB, 0, toClient)
		c.expectNone(sideA, received)
		c.expectNone(sideB, received)
	default:
		c.expect(sideA, toClient, toServer)
		if c.Client == lab.PodB {
			c.expect(sideB, toServer, toClient)
		}
	}
}

// checkHostDevice checks the host's own device among the pods. In modes without host
// sides, packets between pods cross it only where the host's rules translate them.
func (c *sampleCheck) checkHostDevice() {
	traits := c.traits()
	if traits.HostSide || traits.HostDevice == "" {
		c.expectNone(Device{Place: lab.Host, Name: "lo"}, both)
		return
	}
	toServer, toClient := c.packets()
	device := Device{Place: lab.Host, Name: traits.HostDevice}
	switch {
	case !c.translatedByRules():
		c.expectNone(device, both)
	case traits.ReceiveOnUplink:
		c.expect(device, toClient, toServer+toClient)
	default:
		c.expect(device, toServer+toClient, toServer+toClient)
	}
}

// expect adds a finding if a device of the path counted fewer packets than this flow
// and the others that cross it.
func (c *sampleCheck) expect(at Device, rx, tx uint64) {
	if c.collected != nil {
		d := c.collected.devices[at]
		c.collected.devices[at] = result.DeviceCount{RxPackets: d.RxPackets + rx, TxPackets: d.TxPackets + tx}
		return
	}
	shared := c.demanded(at)
	rx, tx = rx+shared.RxPackets, tx+shared.TxPackets
	if d := c.count(at); d.RxPackets < rx || d.TxPackets < tx {
		c.add("%s in %s received %d packets and sent %d, want at least %d and %d", d.Name, d.Host, d.RxPackets, d.TxPackets, rx, tx)
	}
}

// expectNone adds a finding if a device off the path, which no other flow crosses in
// that direction, counted packets.
func (c *sampleCheck) expectNone(at Device, ways direction) {
	if c.collected != nil {
		return
	}
	d, shared, limit := c.count(at), c.demanded(at), c.strayLimit()
	strayReceived := ways&received != 0 && shared.RxPackets == 0 && d.RxPackets > limit
	straySent := ways&sent != 0 && shared.TxPackets == 0 && d.TxPackets > limit
	if strayReceived || straySent {
		c.add("%s in %s, off the path, received %d packets and sent %d", d.Name, d.Host, d.RxPackets, d.TxPackets)
	}
}

func (c *sampleCheck) demanded(at Device) (sum result.DeviceCount) {
	for _, other := range c.others {
		sum.RxPackets += other.devices[at].RxPackets
		sum.TxPackets += other.devices[at].TxPackets
	}
	return sum
}

func (c *sampleCheck) count(at Device) result.DeviceCount {
	if d := find(c.evidence.Devices, at); d != nil {
		return *d
	}
	return result.DeviceCount{Host: at.Place, Name: at.Name}
}
