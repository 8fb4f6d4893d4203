// SPDX-License-Identifier: Apache-2.0

package evidence

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

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
	tracked     bool              // the kernel's connection tracking had an entry of the client's connection
	translated  bool              // an entry changed an address or a port
	redirected  bool              // an entry changed the destination
	ovsDatapath string            // of the lab's Open vSwitch, if it has one
	devices     map[string]string // true names of the pods' devices
	small       []string          // ends whose devices should take packets of BIG TCP, and do not
	sum         sums              // of all flows that ran side by side
}

// crossing is a device, and the least numbers of packets that it must have counted. In the directions of none it must
// have counted no more than stray ones, unless other flows cross it so.
type crossing struct {
	Device
	rx, tx uint64
	none   direction
}

// sums are the least increases of the counters that the paths of flows demand.
type sums struct {
	devices         map[Device]result.DeviceCount
	programs, rules map[string]uint64
}

func checkAll(checks []*sampleCheck) (out []result.Evidence) {
	s := sums{map[Device]result.DeviceCount{}, map[string]uint64{}, map[string]uint64{}}
	for _, c := range checks {
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
	for _, c := range checks {
		c.sum = s
		c.check()
		out = append(out, c.evidence)
	}
	return out
}

func (c *sampleCheck) packets() (toServer, toClient uint64) {
	toServer, toClient = c.measurement.Packets()
	if c.Lab.BigTCP && c.measurement.Workload == load.TCPStream {
		large := max(c.measurement.Count/rtnl.BigTCPBytes, 1)
		return min(toServer, large), min(toClient, large)
	}
	return toServer, toClient
}

func (c *sampleCheck) connections() uint64 {
	if c.measurement.Workload == load.TCPCRR {
		return c.measurement.Count
	}
	return 1
}

func (c *sampleCheck) add(format string, args ...any) {
	c.evidence.Findings = append(c.evidence.Findings, fmt.Sprintf(format, args...))
}

func (c *sampleCheck) check() {
	if c.measurement.Count == 0 && !c.mayLoseAll {
		c.add("no data was transferred")
	}
	if m := c.measurement; m.ClientPeer != c.Connect && (c.Ends == nil || m.ClientPeer != c.Listen) {
		// In a cluster a program may translate the address in connect().
		c.add("the client's peer is %s, want %s", m.ClientPeer, c.Connect)
	}
	if c.fromMachine && c.Ends == nil { // in a cluster, agents in pods are not on this machine
		c.checkFromMachine()
		return
	}
	if at := c.measurement.ServerLocal; at != c.Listen {
		c.add("the server's address is %s, want %s", at, c.Listen)
	}
	if c.Ends != nil { // the server's peer is another address than the client's where one is masqueraded
		if local := c.measurement.ClientLocal.Addr(); len(c.Ends.Client) > 0 && !slices.Contains(c.Ends.Client, local) {
			c.add("the client's address is %s, want one of %v", local, c.Ends.Client)
		}
		return
	}
	c.checkServerPeer()
	c.checkDevices()
	c.checkConnections()
	c.checkCounters()
	for _, place := range c.small {
		c.add("the device of %s takes no packets of BIG TCP", place)
	}
}

// checkFromMachine checks a path from this machine itself to another one. Its packets leave via the uplink, or via
// any device but lo if the uplink is unknown. The other machine's address may be translated.
func (c *sampleCheck) checkFromMachine() {
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

// checkServerPeer checks the client's address as seen by the server. Address translation in the kernel or in eBPF
// also changes the client's port if a recent connection had the same one.
func (c *sampleCheck) checkServerPeer() {
	m, seenAs := c.measurement, netip.Addr{}
	switch {
	case c.Route != nil:
		seenAs = c.Route.SeenAs
	case c.Masqueraded():
		seenAs = lab.Gateways[c.family()].Addr()
	}
	samePort := m.ServerPeer.Port() == m.ClientLocal.Port() || c.translated || c.evidence.ProgramRuns["port_changed"] > 0
	switch {
	case seenAs.IsValid() && m.ServerPeer.Addr() != seenAs:
		c.add("the server's peer is %s, want the host's address %s", m.ServerPeer, seenAs)
	case !seenAs.IsValid() && (m.ServerPeer.Addr() != m.ClientLocal.Addr() || !samePort):
		c.add("the server's peer is %s, want %s", m.ServerPeer, m.ClientLocal)
	}
}

// checkConnections checks the entries of both connection tables, the kernel's and the eBPF one.
func (c *sampleCheck) checkConnections() {
	tracker := "" // rules that track the connection without a change of its destination
	switch {
	case c.Lab.NetfilterCall && c.Lab.Via != lab.ViaEBPFSocket: // socket translation needs no rules
		tracker = "the bridged packets did not pass the host's rules"
	case ByRules(c.Lab.Via) && c.Target == result.TargetPodIP &&
		(c.Route != nil || c.traits().Routed || c.Client == lab.Host): // it leads by the IP layer of a host with the rules
		tracker = "the kernel's connection table: no entry of the connection, which passes the rules of the service proxy"
	case c.policyRules():
		tracker = "the kernel's connection table: no entry of the connection, which the rules of the policy track"
	}
	switch {
	case c.Route != nil && c.Route.TranslatedAt != "":
		if !c.translated {
			c.add("the connection table of %s: no translated entry of the connection", c.Route.TranslatedAt)
		}
	case c.Lab.Topology == lab.TopologyDocker: // Docker's rules track all connections of the host
	case ByRules(c.Via):
		if !c.redirected {
			c.add("the kernel's connection table: no translated entry of the connection")
		}
	case tracker == "" && c.tracked:
		c.add("the kernel tracks the connection, which should bypass its rules")
	case tracker != "" && (!c.tracked || c.redirected):
		c.add("%s (tracked %t, redirected %t)", tracker, c.tracked, c.redirected)
	}
	perPacket := c.Via == result.ViaEBPFTC || c.Lab.Policy == lab.ViaEBPFTC // translation at the socket adds no entries
	if perPacket != (c.evidence.Connections > 0) {
		c.add("the eBPF connection table has %d entries of the connection", c.evidence.Connections)
	}
}

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

// rules returns the least increases of counters of a network policy's rules. [Recorder.Start] sends the denied packet.
func (c *sampleCheck) rules() map[string]uint64 {
	if !c.policyRules() {
		return nil
	}
	toServer, toClient := c.packets()
	return map[string]uint64{"established": toServer + toClient, "allowed": c.connections(), "denied": 1}
}

// checkCounters checks that the path's eBPF programs ran, or none if no flow has one. It also checks that a network
// policy judged the connections, by its rules or by the programs, and that none did on a path without policy.
func (c *sampleCheck) checkCounters() {
	runs := c.evidence.ProgramRuns
	if len(c.sum.programs) == 0 && len(runs) > 0 {
		c.add("eBPF programs ran: %v", runs)
	}
	for _, name := range slices.Sorted(maps.Keys(c.programs())) {
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

func (c *sampleCheck) checkDevices() {
	toServer, _ := c.packets()
	// Neighbour discovery, the connection's setup, the report at its end, and packets in flight of a previous stream.
	limit := 60 + toServer/50
	if c.measurement.Workload == load.TCPRR {
		limit = 20 + toServer/50
	}
	if pod := find(c.evidence.Devices, Device{Place: c.Server, Name: lab.IfName}); pod != nil && c.joined() &&
		c.measurement.Workload == load.TCPCRR && pod.TxPackets >= packetsOfData*c.measurement.Count {
		c.add("%s in %s sent %d packets for %d connections: data among them", pod.Name, pod.Host, pod.TxPackets,
			c.measurement.Count)
	}
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

// packetsOfData is the number of packets from which a server's connection has sent data too: SYN and FIN are two.
const packetsOfData = 3

// joined reports whether the data passes no device.
func (c *sampleCheck) joined() bool {
	return c.Lab.Sockmap && strings.HasPrefix(c.measurement.Workload, "tcp")
}

func onHost(name string) Device { return Device{Place: lab.Host, Name: name} }

func (c *sampleCheck) crossings() (all []crossing) {
	toServer, toClient := c.packets()
	pod := func(place string) Device { return Device{Place: place, Name: cmp.Or(c.devices[place], lab.IfName)} }
	switch {
	case c.Route != nil:
		for _, step := range c.Route.Steps {
			x := crossing{Device: step.Device, rx: toServer, tx: toServer}
			switch step.toServer {
			case received:
				x.tx = toClient
			case sent:
				x.rx = toClient
			}
			all = append(all, x)
		}
		for _, d := range c.Route.Avoids {
			all = append(all, crossing{Device: d, none: both})
		}
		for _, d := range c.Route.Unsent {
			all = append(all, crossing{Device: d, none: sent})
		}
		return all
	case c.Target == result.TargetLoopback: // the host's loopback device only
		return []crossing{{Device: onHost("lo"), rx: toServer, tx: toServer}, {Device: pod(lab.PodA), none: both}}
	}
	if c.joined() && c.measurement.Workload == load.TCPCRR {
		return nil
	}
	if c.joined() { // devices see connections begin and end
		return []crossing{{Device: pod(lab.PodA), none: both}, {Device: pod(lab.PodB), none: both}}
	}
	all = append(all, crossing{Device: pod(lab.PodA), rx: toServer, tx: toClient})
	if c.Client == lab.PodB {
		all = append(all, crossing{Device: pod(lab.PodB), rx: toClient, tx: toServer})
	}
	traits := c.traits()
	if traits.HostSide {
		all = append(all, c.hostSides(traits.DeliveryOn(c.ovsDatapath))...)
	}
	// In modes without host sides, packets between pods cross the host's own device only where its rules translate them.
	host := crossing{Device: onHost(traits.HostDevice), rx: toServer + toClient, tx: toServer + toClient}
	switch {
	case traits.HostSide || traits.HostDevice == "":
		host = crossing{Device: onHost("lo"), none: both}
	case !ByRules(c.Via):
		host = crossing{Device: host.Device, none: both}
	case traits.ReceiveOnUplink:
		host.rx = toClient
	}
	return append(all, host)
}

// hostSides returns the host's ends of the pods' links. With the eBPF datapath, programs redirect packets past some.
func (c *sampleCheck) hostSides(delivery podlink.Delivery) []crossing {
	toServer, toClient := c.packets()
	sideA, sideB := onHost(lab.HostIfName(lab.PodA)), onHost(lab.HostIfName(lab.PodB))
	switch ebpf := c.Datapath() == result.DatapathEBPF; {
	case ebpf && delivery == podlink.DeliverToPeer:
		return []crossing{{Device: sideB, rx: toServer}, {Device: sideA, rx: toClient}, {Device: sideA, none: sent},
			{Device: sideB, none: sent}}
	case ebpf && delivery == podlink.DeliverFromPeer:
		return []crossing{{Device: sideA, tx: toServer}, {Device: sideB, tx: toClient}, {Device: sideA, none: received},
			{Device: sideB, none: received}}
	}
	sides := []crossing{{Device: sideA, rx: toClient, tx: toServer}, {Device: sideB, rx: toServer, tx: toClient}}
	if c.Client != lab.PodB {
		return sides[:1]
	}
	return sides
}
