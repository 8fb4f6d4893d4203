// SPDX-License-Identifier: Apache-2.0

package evidence

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"mustang/internal/lab"
	"mustang/internal/load"
	"mustang/internal/netns"
	"mustang/internal/netstat"
	"mustang/internal/result"
	"mustang/internal/rtnl"
)

// Error means that traffic did not take the path that its row claims. It has at least one finding.
type Error struct{ Findings []string }

// Error implements error.
func (e *Error) Error() string {
	return "the evidence contradicts the path: " + strings.Join(e.Findings, "; ")
}

// Recorder collects the evidence of the flows of one lab, between Start and Stop. Other traffic must not cross it.
type Recorder struct {
	// Lab is the lab. It is nil if client and server are this machine and another one.
	Lab *lab.Lab
	// Machine is the network namespace of this machine if the flows cross its devices, otherwise nil.
	Machine *netns.Namespace

	before counters
}

// Flow is the traffic on one path while a [Recorder] runs.
type Flow struct {
	Path        Path             // that the flow claims
	Measurement load.Measurement // what client and server counted
	MayLoseAll  bool             // accepts a flow that delivered nothing: the path may not carry the offered rate
}

// Start reads the counters before the flows. A lab with a network policy is sent a packet that the policy denies.
func (r *Recorder) Start() (err error) {
	if r.before, err = r.read(); err != nil || r.Lab == nil {
		return err
	}
	return r.Lab.Knock()
}

func (r *Recorder) read() (counters, error) {
	c, err := readCounters(r.Lab)
	if err == nil && r.Machine != nil {
		err = c.readDevices(ThisMachine, r.Machine)
	}
	return c, err
}

// Stop reads the counters after the flows and compares their increase with the paths. It returns the evidence of
// each flow, with findings where the evidence contradicts the path. Counters of devices and programs cover all flows
// together: each must have counted at least the packets of all flows that cross it.
func (r *Recorder) Stop(flows ...Flow) ([]result.Evidence, error) {
	after, err := r.read()
	if err != nil {
		return nil, err
	}
	chains := map[string][]lab.HookChain{} // by place
	if r.Lab != nil {
		for _, place := range r.Lab.Places() {
			if chains[place], err = r.Lab.Hooks(place); err != nil {
				return nil, err
			}
		}
	}
	var checks []*sampleCheck
	for _, f := range flows {
		m := f.Measurement
		c := &sampleCheck{Path: f.Path, mayLoseAll: f.MayLoseAll, measurement: m, evidence: after.since(r.before),
			fromMachine: r.Lab == nil}
		c.evidence.Client = result.Addresses{Local: m.ClientLocal.String(), Peer: m.ClientPeer.String()}
		c.evidence.Server = result.Addresses{Local: m.ServerLocal.String(), Peer: m.ServerPeer.String()}
		if r.Lab != nil {
			if err := c.inspect(r.Lab); err != nil {
				return nil, err
			}
			c.evidence.Hooks = c.hooks(chains, r.before, after)
		}
		checks = append(checks, c)
	}
	return checkAll(checks), nil
}

// Record records the one flow that run carries. If the evidence contradicts the flow's path, the error is an [*Error].
func (r *Recorder) Record(run func() (Flow, error)) (e result.Evidence, err error) {
	if err := r.Start(); err != nil {
		return e, err
	}
	flow, err := run()
	if err != nil {
		return e, err
	}
	seen, err := r.Stop(flow)
	if err != nil {
		return e, err
	}
	return seen[0], Contradiction(seen[0])
}

// Contradiction returns an [*Error] if the evidence of a flow has findings.
func Contradiction(e result.Evidence) error {
	if len(e.Findings) == 0 {
		return nil
	}
	return &Error{e.Findings}
}

func (c *sampleCheck) inspect(l *lab.Lab) (err error) {
	c.ovsDatapath = l.OVSDatapath()
	c.devices = map[string]string{lab.PodA: l.Device(lab.PodA), lab.PodB: l.Device(lab.PodB)}
	for _, look := range []func(*lab.Lab) error{c.countConnections, c.lookUpConnection, c.findSmall} {
		if err := look(l); err != nil {
			return err
		}
	}
	if c.Route != nil {
		c.Route, err = c.Route.resolve(l)
	}
	return err
}

// countConnections counts the entries of the client's connection in the lab's eBPF connection table, which may have
// other connections of its port. Without a service, a connection has an entry in two cases. Where policies hold, the
// entry counts. Where its port had to change, as a connection to the service had it, the entry shows nothing.
func (c *sampleCheck) countConnections(l *lab.Lab) error {
	if l.Datapath() == nil {
		return nil
	}
	connections, err := l.Datapath().Connections()
	if err != nil {
		return fmt.Errorf("read eBPF connections: %w", err)
	}
	for _, connection := range connections {
		if connection.Client == c.measurement.ClientLocal && connection.Service == c.Connect &&
			(c.Lab.Policy == lab.ViaEBPFTC || connection.ServiceID != 0) {
			c.evidence.Connections++
		}
	}
	return nil
}

func (c *sampleCheck) lookUpConnection(l *lab.Lab) error {
	place := lab.HostA
	switch {
	case c.Route != nil && c.Route.TranslatedAt != "":
		place = c.Route.TranslatedAt
	case c.Lab.Topology == lab.TopologyPodLinks:
		place = lab.Host
	case c.Lab.Topology == lab.TopologyPodToNetwork:
		place = lab.HostB
	}
	ns, err := l.Namespace(place)
	if err != nil {
		return err
	}
	m, proto := c.measurement, uint8(unix.IPPROTO_TCP)
	if m.Workload == load.UDPRR || m.Workload == load.UDPStream {
		proto = unix.IPPROTO_UDP
	}
	// Where sockets are translated, packets go to the server's own address.
	for _, to := range slices.Compact([]netip.AddrPort{m.ClientPeer, m.ServerLocal}) {
		reply, ok, err := netstat.Lookup(ns, proto, netstat.Tuple{Src: m.ClientLocal, Dst: to})
		if err != nil {
			return err
		}
		c.tracked = c.tracked || ok
		c.translated = c.translated || ok && reply != netstat.Tuple{Src: to, Dst: m.ClientLocal}
		c.redirected = c.redirected || ok && reply.Src != to
	}
	return nil
}

// findSmall notes the ends of a path with BIG TCP whose devices do not take its packets. The size of packets depends
// on the speed of the machine: their mean proves nothing.
func (c *sampleCheck) findSmall(l *lab.Lab) error {
	if !c.Lab.BigTCP {
		return nil
	}
	for _, place := range []string{c.Client, c.Server} {
		ns, err := l.Namespace(place)
		if err != nil {
			return err
		}
		takes, _, err := rtnl.In(ns).TakesBigTCP(l.Device(place))
		if err != nil {
			return err
		}
		if !takes {
			c.small = append(c.small, place)
		}
	}
	return nil
}

// hooks lists the rule chains of the path's address family that the sample's packets passed, by place, according to the
// counters of the IP layer. A bridge with NetfilterCall passes packets to chains without the IP layer.
func (c *sampleCheck) hooks(chains map[string][]lab.HookChain, before, after counters) (out []string) {
	toServer, toClient := c.packets()
	least := max(min(toServer, toClient), 1)
	family, other := c.family(), [2]string{"ip6", "ip"}[c.family()]
	for _, place := range slices.Sorted(maps.Keys(chains)) {
		now, then := after.ip[place][family], before.ip[place][family]
		delivered, forwarded, sent := now.Delivered-then.Delivered, now.Forwarded-then.Forwarded, now.Sent-then.Sent
		passed := map[string]uint64{"prerouting": delivered + forwarded, "input": delivered, "forward": forwarded,
			"output": sent, "postrouting": sent + forwarded}
		for _, chain := range chains[place] {
			called := c.Lab.NetfilterCall && place == lab.Host && chain.Hook != "input" && chain.Hook != "output"
			if chain.Family != other && (passed[chain.Hook] >= least || called) {
				out = append(out, fmt.Sprintf("%s: %s %s %s (%s)", place, chain.Family, chain.Table, chain.Chain, chain.Hook))
			}
		}
	}
	return out
}
