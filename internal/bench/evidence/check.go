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

// Ends are what is known of the ends of a path in a cluster.
type Ends struct {
	// Client are the addresses of the client's pod; empty if any address of its node will do.
	Client []netip.Addr
}

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
	// sum are the least increases of the counters by all flows that ran side by side.
	sum sums
}

// crossing is a device, and the least numbers of packets that it must have counted. In the directions of none it must
// have counted no more than stray ones, unless other flows cross it so.
type crossing struct {
	Device
	rx, tx uint64
	none   direction
}

type sums struct {
	devices         map[Device]result.DeviceCount
	programs, rules map[string]uint64
}

// sumUp returns the sums of what the paths of flows demand.
func sumUp(flows []*sampleCheck) sums {
	s := sums{map[Device]result.DeviceCount{}, map[string]uint64{}, map[string]uint64{}}
	for _, c := range flows {
		if c.fromMachine || c.Ends != nil {
			continue
		}
		for _, x := range c.crossings() {
			d := s.devices[x.Device]
			s.devices[x.Device] = result.DeviceCount{RxPackets: d.RxPackets + x.rx, TxPackets: d.TxPackets + x.tx}
		}
		for name, runs := range c.programs() {
			s.programs[name] += runs
		}
		for name, packets := range c.rules() {
			s.rules[name] += packets
		}
	}
	return s
}

// packets returns the least number of packets that must have crossed each device of
// the path in each direction.
func (c *sampleCheck) packets() (toServer, toClient uint64) {
	toServer, toClient = c.measurement.Packets()
	large := c.measurement.Count / rtnl.BigTCPBytes
	switch {
	case !c.Lab.BigTCP || c.measurement.Workload != load.TCPStream:
		return toServer, toClient
	case c.measurement.Reverse:
		return toServer, large
	}
	return large, toClient
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

// connections returns the least number of connections that the flow has opened.
func (c *sampleCheck) connections() uint64 {
	if c.measurement.Workload == load.TCPCRR {
		return c.measurement.Count
	}
	return 1
}

func (c *sampleCheck) add(format string, args ...any) {
	c.evidence.Findings = append(c.evidence.Findings, fmt.Sprintf(format, args...))
}

// check adds a finding for each contradiction between evidence and path.
func (c *sampleCheck) check() {
	if c.measurement.Count == 0 && !c.mayLoseAll {
		c.add("no data was transferred")
	}
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
	c.checkCounters()
	for _, place := range c.small {
		c.add("the device of %s takes no packets of BIG TCP", place)
	}
}

// checkEnds checks the addresses that both ends of a path in a cluster see. The client's peer is the server itself
// where a program translates the address in connect(), and the server's peer another address than the client's where
// one is masqueraded.
func (c *sampleCheck) checkEnds() {
	m := c.measurement
	if m.ClientPeer != c.Connect && m.ClientPeer != c.Listen {
		c.add("the client's peer is %s, want %s", m.ClientPeer, c.Connect)
	}
	if m.ServerLocal != c.Listen {
		c.add("the server's address is %s, want %s", m.ServerLocal, c.Listen)
	}
	if local := m.ClientLocal.Addr(); len(c.Ends.Client) > 0 && !slices.Contains(c.Ends.Client, local) {
		c.add("the client's address is %s, want one of %v", local, c.Ends.Client)
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
			c.add("the kernel's connection table: no entry of the connection, which passes the rules of the service proxy "+
				"(redirected %t)", c.redirected)
		}
	case c.policyRules():
		if !c.tracked || c.redirected {
			c.add("the kernel's connection table: no entry of the connection, which the rules of the policy track "+
				"(redirected %t)", c.redirected)
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

// rules returns the least increases of the counters of a network policy's rules. The packet that is denied is that of
// [Recorder.Start].
func (c *sampleCheck) rules() map[string]uint64 {
	if !c.policyRules() {
		return nil
	}
	toServer, toClient := c.packets()
	return map[string]uint64{"established": toServer + toClient, "allowed": c.connections(), "denied": 1}
}

// checkCounters checks that the path's eBPF programs ran, or none where no flow has one, and that a network policy has
// judged the connections, by its rules or by the programs, and that there is none where the path has none.
func (c *sampleCheck) checkCounters() {
	runs := c.evidence.ProgramRuns
	if len(c.sum.programs) == 0 && len(runs) > 0 {
		c.add("eBPF programs ran: %v", runs)
	}
	for name := range c.programs() {
		if least := c.sum.programs[name]; runs[name] < least {
			c.add("eBPF counter %s increased by %d, want at least %d", name, runs[name], least)
		}
	}
	if c.Lab.Policy == "" && runs["tracked"] > 0 {
		c.add("a network policy has judged %d connections", runs["tracked"])
	}
	for _, name := range slices.Sorted(maps.Keys(c.rules())) {
		if got, least := c.evidence.Rules[name], c.sum.rules[name]; got < least {
			c.add("rules of the policy counted %d packets that were %s, want at least %d", got, name, least)
		}
	}
}

// checkDevices compares the packets at each device with the path.
func (c *sampleCheck) checkDevices() {
	limit := c.strayLimit()
	for _, x := range c.crossings() {
		d, least := result.DeviceCount{Host: x.Place, Name: x.Name}, c.sum.devices[x.Device]
		if counted := find(c.evidence.Devices, x.Device); counted != nil {
			d = *counted
		}
		strayReceived := x.none&received != 0 && least.RxPackets == 0 && d.RxPackets > limit
		straySent := x.none&sent != 0 && least.TxPackets == 0 && d.TxPackets > limit
		switch {
		case strayReceived || straySent:
			c.add("%s in %s, off the path, received %d packets and sent %d", d.Name, d.Host, d.RxPackets, d.TxPackets)
		case x.none == 0 && (d.RxPackets < least.RxPackets || d.TxPackets < least.TxPackets):
			c.add("%s in %s received %d packets and sent %d, want at least %d and %d",
				d.Name, d.Host, d.RxPackets, d.TxPackets, least.RxPackets, least.TxPackets)
		}
	}
}

// crossings returns what the path says of devices.
func (c *sampleCheck) crossings() []crossing {
	toServer, toClient := c.packets()
	switch {
	case c.Route != nil:
		var all []crossing
		for _, step := range c.Route.Steps {
			switch step.toServer {
			case received:
				all = append(all, crossing{Device: step.Device, rx: toServer, tx: toClient})
			case sent:
				all = append(all, crossing{Device: step.Device, rx: toClient, tx: toServer})
			default:
				all = append(all, crossing{Device: step.Device, rx: toServer, tx: toServer})
			}
		}
		for _, d := range c.Route.Avoids {
			all = append(all, crossing{Device: d, none: both})
		}
		return all
	case c.Target == result.TargetLoopback: // the host's loopback device only
		return []crossing{{Device: onHost("lo"), rx: toServer, tx: toServer}, {Device: c.podDevice(lab.PodA), none: both}}
	}
	all := []crossing{{Device: c.podDevice(lab.PodA), rx: toServer, tx: toClient}}
	if c.Client == lab.PodB {
		all = append(all, crossing{Device: c.podDevice(lab.PodB), rx: toClient, tx: toServer})
	}
	if c.traits().HostSide {
		all = append(all, c.hostSides()...)
	}
	return append(all, c.hostDevice())
}

func onHost(name string) Device { return Device{Place: lab.Host, Name: name} }

func (c *sampleCheck) podDevice(pod string) Device {
	if name, ok := c.devices[pod]; ok {
		return Device{Place: pod, Name: name}
	}
	return Device{Place: pod, Name: lab.IfName}
}

// hostSides returns the host's ends of the pods' links. With the eBPF datapath,
// programs redirect packets so that they bypass some of these.
func (c *sampleCheck) hostSides() []crossing {
	toServer, toClient := c.packets()
	sideA, sideB := onHost(lab.HostIfName(lab.PodA)), onHost(lab.HostIfName(lab.PodB))
	delivery := c.traits().DeliveryOn(c.ovsDatapath)
	switch ebpf := c.Datapath() == result.DatapathEBPF; {
	case ebpf && delivery == podlink.DeliverToPeer:
		return []crossing{{Device: sideB, rx: toServer}, {Device: sideA, rx: toClient}, {Device: sideA, none: sent},
			{Device: sideB, none: sent}}
	case ebpf && delivery == podlink.DeliverFromPeer:
		return []crossing{{Device: sideA, tx: toServer}, {Device: sideB, tx: toClient}, {Device: sideA, none: received},
			{Device: sideB, none: received}}
	case c.Client == lab.PodB:
		return []crossing{{Device: sideA, rx: toClient, tx: toServer}, {Device: sideB, rx: toServer, tx: toClient}}
	}
	return []crossing{{Device: sideA, rx: toClient, tx: toServer}}
}

// hostDevice returns the host's own device among the pods. In modes without host
// sides, packets between pods cross it only where the host's rules translate them.
func (c *sampleCheck) hostDevice() crossing {
	traits := c.traits()
	toServer, toClient := c.packets()
	sum := toServer + toClient
	switch {
	case traits.HostSide || traits.HostDevice == "":
		return crossing{Device: onHost("lo"), none: both}
	case !c.translatedByRules():
		return crossing{Device: onHost(traits.HostDevice), none: both}
	case traits.ReceiveOnUplink:
		return crossing{Device: onHost(traits.HostDevice), rx: toClient, tx: sum}
	}
	return crossing{Device: onHost(traits.HostDevice), rx: sum, tx: sum}
}
