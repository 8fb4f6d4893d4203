// SPDX-License-Identifier: Apache-2.0

// Package evidence proves which path traffic took. A [Recorder] reads the counters of devices, netfilter hooks, eBPF
// programs and connection tables before and after a sample. It compares their increase, and the addresses that both
// ends see, with the claims of the sample's [Path]. Each contradiction becomes a finding.
package evidence

import (
	"net/netip"
	"slices"

	"mustang/internal/lab"
	"mustang/internal/podlink"
	"mustang/internal/result"
)

// Path is the path of a row: where its client and server are, and what its packets cross between them.
type Path struct {
	Link           string      // the link mode that the row claims, or "host"
	Target, Via    string      // copied to the row (see [result.Row])
	Lab            lab.Options // without a name
	Client, Server string      // places in the lab
	// Connect is the address that the client connects to, Listen the server's. They differ where addresses are translated.
	Connect, Listen netip.AddrPort
	// Route lists the devices of the path. It is nil in labs of two pods on one host, where the link mode implies them.
	Route *Route
	Ends  *Ends // set if the path is in a Kubernetes cluster instead of a lab
}

// Ends describe the ends of a path in a cluster.
type Ends struct {
	Client []netip.Addr // the addresses of the client's pod; empty if any address of its node will do
}

// Datapath returns the datapath of the path's lab, as in a result file.
func (p Path) Datapath() string {
	if p.Lab.Datapath == lab.DatapathEBPF {
		return result.DatapathEBPF
	}
	return result.DatapathKernel
}

func (p Path) family() int {
	if p.Connect.Addr().Is6() {
		return 1
	}
	return 0
}

// TwoHosts reports whether client and server are on different hosts.
func (p Path) TwoHosts() bool { return p.Route != nil && p.Route.TwoHosts }

// Masqueraded reports whether the host replaces the client's address with its own: where firewall rules translate the
// service, and replies would bypass them otherwise.
func (p Path) Masqueraded() bool { return ByRules(p.Via) && !p.traits().Routed && !p.Lab.NetfilterCall }

// ForwardsInUserSpace reports whether a program relays the packets of the path's link, or its connections.
func (p Path) ForwardsInUserSpace() bool {
	return p.traits().Needs == podlink.NeedsRelay || p.Route != nil && p.Route.Proxied
}

// ByRules reports whether a way to a service is one of the kernel's firewall rules, or of IPVS.
func ByRules(via string) bool {
	return via == lab.ViaIPTables || via == lab.ViaNFTables || via == lab.ViaIPVS
}

func (p Path) policyRules() bool { return p.Lab.Policy != "" && p.Lab.Policy != lab.ViaEBPFTC }

func (p Path) traits() podlink.Traits { return Traits(p.Link) }

// Traits returns the traits of a link mode, none if the link is not a mode.
func Traits(link string) podlink.Traits {
	mode, err := podlink.Lookup(link)
	if err != nil {
		return podlink.Traits{}
	}
	return mode.Traits()
}

// Route lists the devices that the packets of a path cross.
type Route struct {
	Steps        []Step     // in the order of the client's packets
	Avoids       []Device   // devices that the packets must not cross
	Unsent       []Device   // devices that must not send the packets: programs deliver them past these
	TwoHosts     bool       // the route crosses the wire between two hosts
	SeenAs       netip.Addr // the client's address as seen by the server; the zero address if it is the client's own
	Proxied      bool       // a program accepts the client's connection and opens one to the server
	TranslatedAt string     // the place whose kernel translates an address, if one does
	Programs     []string   // counters of eBPF programs that count each packet of the client
}

// Device names a network device in a place of a lab, or in [ThisMachine].
type Device struct {
	Place, Name string
	// LinkOf, in place of a name, is the place of a container: the host's end of its link, whose name Docker chooses.
	LinkOf string
}

// ThisMachine is the place of devices outside of labs, in the network namespace of this process.
const ThisMachine = "this machine"

// Step is a device of a route, and the direction in which it counts the packets to the server. It counts the packets
// to the client in the opposite direction.
type Step struct {
	Device
	toServer direction
}

type direction int

const (
	received direction = 1
	sent     direction = 2
	both               = received | sent
)

// Sends returns the step of a device, by its place and name, that sends the packets to the server.
func Sends(place, name string) Step { return Step{Device{Place: place, Name: name}, sent} }

// Receives returns the step of a device, by its place and name, that receives the packets to the server.
func Receives(place, name string) Step { return Step{Device{Place: place, Name: name}, received} }

// Loops returns the step of a device that sends and receives each packet, such as the loopback device or a bridge.
func Loops(place, name string) Step { return Step{Device{Place: place, Name: name}, both} }

// Reverse returns the steps as packets from the server cross them.
func Reverse(steps []Step) []Step {
	reversed := slices.Clone(steps)
	slices.Reverse(reversed)
	for i := range reversed {
		if reversed[i].toServer != both {
			reversed[i].toServer ^= both
		}
	}
	return reversed
}

func (r Route) resolve(l *lab.Lab) (*Route, error) {
	r.Steps = slices.Clone(r.Steps)
	for i := range r.Steps {
		d := &r.Steps[i].Device
		if d.LinkOf != "" {
			var err error
			if d.Name, err = l.HostDevice(d.LinkOf); err != nil {
				return nil, err
			}
		}
		if own := l.Device(d.Place); d.Name == lab.IfName && own != "" {
			d.Name = own // some link modes need another name
		}
	}
	return &r, nil
}
