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

// Error means that traffic did not take the path that its row claims.
type Error struct {
	// Findings are the contradictions, at least one.
	Findings []string
}

// Error implements error.
func (e *Error) Error() string {
	return "the evidence contradicts the path: " + strings.Join(e.Findings, "; ")
}

// Recorder collects the evidence of the flows of one lab, between Start and Stop.
// Meanwhile no other traffic may cross the lab.
type Recorder struct {
	// Lab is the lab. It is nil if client and server are this machine and another one.
	Lab *lab.Lab
	// Machine is the network namespace of this machine if the flows cross its devices,
	// otherwise nil.
	Machine *netns.Namespace

	before counters
}

// Flow is the traffic on one path while a [Recorder] runs.
type Flow struct {
	// Path is the path that the flow claims.
	Path Path
	// Measurement is what client and server counted.
	Measurement load.Measurement
	// MayLoseAll accepts a flow of which nothing arrived: datagrams were offered at a
	// rate that the path may not carry.
	MayLoseAll bool
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

// Stop reads the counters after the flows and compares their increase with the paths.
// It returns the evidence of each flow, with findings where that contradicts its path.
// Counters of devices and programs are those of all flows together: each must have
// counted at least the packets of all flows that cross it.
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
		c := &sampleCheck{Path: f.Path, mayLoseAll: f.MayLoseAll, measurement: f.Measurement, evidence: after.since(r.before),
			fromMachine: r.Lab == nil}
		c.evidence.Client = addresses(f.Measurement.ClientLocal, f.Measurement.ClientPeer)
		c.evidence.Server = addresses(f.Measurement.ServerLocal, f.Measurement.ServerPeer)
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
func (r *Recorder) Record(run func() (Flow, error)) (result.Evidence, error) {
	if err := r.Start(); err != nil {
		return result.Evidence{}, err
	}
	flow, err := run()
	if err != nil {
		return result.Evidence{}, err
	}
	seen, err := r.Stop(flow)
	if err != nil {
		return result.Evidence{}, err
	}
	return seen[0], Contradiction(seen[0])
}

// checkAll checks flows that ran side by side, and returns the evidence of each.
func checkAll(checks []*sampleCheck) (out []result.Evidence) {
	sum := sumUp(checks)
	for _, c := range checks {
		c.sum = sum
		c.check()
		out = append(out, c.evidence)
	}
	return out
}

// Contradiction returns an [*Error] if the evidence of a flow has findings.
func Contradiction(e result.Evidence) error {
	if len(e.Findings) == 0 {
		return nil
	}
	return &Error{e.Findings}
}

// addresses returns one end's view of a connection.
func addresses(local, peer netip.AddrPort) result.Addresses {
	return result.Addresses{Local: local.String(), Peer: peer.String()}
}

func (c *sampleCheck) inspect(l *lab.Lab) (err error) {
	client := c.measurement.ClientLocal
	c.ovsDatapath = l.OVSDatapath()
	c.devices = map[string]string{lab.PodA: l.Device(lab.PodA), lab.PodB: l.Device(lab.PodB)}
	if c.evidence.Connections, err = countConnections(l, client, c.Connect, c.Lab.Policy == lab.ViaEBPFTC); err != nil {
		return err
	}
	if err = c.trackedConnection(l); err != nil {
		return err
	}
	if err := c.findSmall(l); err != nil {
		return err
	}
	if c.Route == nil {
		return nil
	}
	resolved, err := c.Route.resolve(l)
	c.Route = &resolved
	return err
}

// countConnections counts the entries of a client's connection in the lab's eBPF
// connection table, which may have others of its port. One to no service has an entry
// where policies hold, which counts if direct is true, and where its port had to be
// changed since a connection to the service has had it, which says nothing of the path.
func countConnections(l *lab.Lab, client, called netip.AddrPort, direct bool) (int, error) {
	dp := l.Datapath()
	if dp == nil {
		return 0, nil
	}
	connections, err := dp.Connections()
	if err != nil {
		return 0, fmt.Errorf("read eBPF connections: %w", err)
	}
	n := 0
	for _, connection := range connections {
		if connection.Client == client && connection.Service == called && (direct || connection.ServiceID != 0) {
			n++
		}
	}
	return n, nil
}

// tracker returns the place whose kernel may track the path's connections.
func (p Path) tracker() string {
	switch {
	case p.Route != nil && p.Route.TranslatedAt != "":
		return p.Route.TranslatedAt
	case p.Lab.Topology == lab.TopologyPodLinks:
		return lab.Host
	case p.Lab.Topology == lab.TopologyPodToNetwork:
		return lab.HostB
	}
	return lab.HostA
}

// trackedConnection looks for the flow's connection in the kernel's connection tracking.
func (c *sampleCheck) trackedConnection(l *lab.Lab) error {
	ns, err := l.Namespace(c.tracker())
	if err != nil {
		return err
	}
	m, proto := c.measurement, uint8(unix.IPPROTO_TCP)
	if m.Workload == load.UDPRR || m.Workload == load.UDPStream {
		proto = unix.IPPROTO_UDP
	}
	// Where sockets are translated, packets go to the server's own address.
	for _, to := range []netip.AddrPort{m.ClientPeer, m.ServerLocal} {
		flow, ok, err := netstat.Lookup(ns, proto, netstat.Tuple{Src: m.ClientLocal, Dst: to})
		if err != nil {
			return err
		}
		c.tracked = c.tracked || ok
		c.translated = c.translated || ok && flow.Reply != netstat.Tuple{Src: flow.Orig.Dst, Dst: flow.Orig.Src}
		c.redirected = c.redirected || ok && flow.Reply.Src != flow.Orig.Dst
	}
	return nil
}

// findSmall notes the ends of a path with BIG TCP whose devices do not take its packets. How large packets are depends
// on the speed of the machine, so their mean size proves nothing.
func (c *sampleCheck) findSmall(l *lab.Lab) error {
	if !c.Lab.BigTCP {
		return nil
	}
	for _, place := range []string{c.Client, c.Server} {
		ns, err := l.Namespace(place)
		if err != nil {
			return err
		}
		takes, err := rtnl.In(ns).TakesBigTCP(l.Device(place))
		if err != nil {
			return err
		}
		if !takes {
			c.small = append(c.small, place)
		}
	}
	return nil
}

// hooks lists the rule chains of the path's address family that the sample's packets passed, by place. A bridge with
// NetfilterCall passes packets to chains without the IP layer, whose counters stand
// still then.
func (c *sampleCheck) hooks(chains map[string][]lab.HookChain, before, after counters) (out []string) {
	toServer, toClient := c.packets()
	least := max(min(toServer, toClient), 1)
	family, other := c.family(), [2]string{"ip6", "ip"}[c.family()]
	for _, place := range slices.Sorted(maps.Keys(chains)) {
		passed := passedHooks(ipSince(after.ip[place][family], before.ip[place][family]), least)
		for _, chain := range chains[place] {
			called := c.Lab.NetfilterCall && place == lab.Host && chain.Hook != "input" && chain.Hook != "output"
			if chain.Family != other && (passed[chain.Hook] || called) {
				out = append(out, fmt.Sprintf("%s: %s %s %s (%s)", place, chain.Family, chain.Table, chain.Chain, chain.Hook))
			}
		}
	}
	return out
}

// passedHooks returns the netfilter hooks that at least this many packets passed,
// according to the counters of the IP layer.
func passedHooks(c netstat.IPCounters, least uint64) map[string]bool {
	return map[string]bool{
		"prerouting":  c.Delivered+c.Forwarded >= least,
		"input":       c.Delivered >= least,
		"forward":     c.Forwarded >= least,
		"output":      c.Sent >= least,
		"postrouting": c.Sent+c.Forwarded >= least,
	}
}
