// SPDX-License-Identifier: Apache-2.0

package suites

import (
	"slices"
	"strings"

	"mustang/internal/bench/evidence"
	"mustang/internal/lab"
	"mustang/internal/podlink"
	"mustang/internal/result"
)

// switching compares a Linux bridge with Open vSwitch, for namespaces and VMs, on one
// host and across two, with and without VXLAN, as article 003 does.
func switching() Suite {
	s := Suite{
		Name:      "switching",
		Doc:       "Linux bridge against Open vSwitch: namespaces and VMs, one host and two, plain and VXLAN",
		Workloads: []Workload{tcpStreams(1), tcpStreams(3), udpStreams(1), udpStreams(3)},
		Report: result.Suite{
			Question: "Is a Linux bridge or Open vSwitch faster, for namespaces and for virtual machines, on one host and across two, with and without VXLAN?",
			Answer:   []string{result.AnswerTally, result.AnswerStatements},
			Subject:  "Open vSwitch", Object: "a Linux bridge", Variants: true,
		},
		CountedQuestion: "Does a Linux bridge or Open vSwitch take fewer instructions, on one host and across two, with and without VXLAN?",
		adapt:           describeSwitching,
	}
	host := hostsPath("two-hosts/host", lab.HostB, lab.HostA, lab.Options{Topology: lab.TopologyTwoHosts, Link: lab.LinkHost})
	s.addBaseline(host)
	bridged := hostsPath("two-hosts/host-bridge", lab.HostB, lab.HostA, lab.Options{Topology: lab.TopologyTwoHosts, Link: lab.LinkHostBridge})
	bridged.Variant, bridged.Note = "on a bridge", "the host's address is on a bridge with the uplink as a port"
	s.Paths = append(s.Paths, bridged)
	s.compare(bridged.ID, host.ID)
	for _, port := range switchPorts() {
		p := port.sameHost("same-host/" + port.id)
		s.Paths = append(s.Paths, p)
		if port.repeated {
			s.repeat(p)
		}
		s.compareSwitches("same-host/", port)
	}
	for _, port := range switchPorts() {
		p := port.twoHosts("two-hosts/"+port.id, "")
		s.Paths = append(s.Paths, p)
		s.compareSwitches("two-hosts/", port)
		s.compare(p.ID, host.ID)
		s.compare(p.ID, "same-host/"+port.id)
	}
	for _, port := range switchPorts() {
		s.Paths = append(s.Paths, port.twoHosts("vxlan/"+port.id, lab.OverlayVXLAN))
		s.compareSwitches("vxlan/", port)
		s.compare("vxlan/"+port.id, "two-hosts/"+port.id)
	}
	for _, o := range bridgedOverlays() {
		p := o.port.twoHosts(o.id, o.overlay)
		p.Note, p.Variant = o.note, "ovs-bridge"
		s.Paths = append(s.Paths, p)
		s.compare(o.id, o.reference)
	}
	return s
}

// bridgedOverlay is a VXLAN tunnel of an Open vSwitch below a Linux bridge.
type bridgedOverlay struct {
	id, reference, note string
	port                switchPort
	overlay             string
}

// bridgedOverlays returns those that are compared with the bridge's own tunnels.
func bridgedOverlays() []bridgedOverlay {
	const byVeth, byPort = "bridge and Open vSwitch are joined by a veth pair", "bridge and Open vSwitch are joined by an internal port"
	return []bridgedOverlay{
		{"vxlan/ovs-bridge/veth", "vxlan/bridge/veth", byVeth, switchPort{link: "bridge"}, lab.OverlayBridgedVeth},
		{"vxlan/ovs-bridge/internal", "vxlan/bridge/veth", byPort, switchPort{link: "bridge"}, lab.OverlayBridgedInternal},
		{"vxlan/ovs-bridge/vm", "vxlan/bridge/vm", byVeth, switchPort{link: "tap", guest: true}, lab.OverlayBridgedVeth},
	}
}

// switchPort is a kind of switch port with a pod or a VM on it.
type switchPort struct {
	id, link string
	guest    bool   // the pod is a VM
	bridge   string // for Open vSwitch, the ID of the same port on a Linux bridge
	words    string // the comparison with it in words
	repeated bool   // the path on one host is measured twice: one of each class of noise
}

func switchPorts() []switchPort {
	return []switchPort{
		{id: "bridge/veth", link: "bridge"},
		{id: "bridge/vm", link: "tap", guest: true, repeated: true},
		{id: "ovs/veth", link: "ovs-veth", bridge: "bridge/veth", words: "namespaces on veth", repeated: true},
		{id: "ovs/internal", link: "ovs-internal", bridge: "bridge/veth", words: "namespaces on internal ports against veth"},
		{id: "ovs/vm", link: "ovs-tap", guest: true, bridge: "bridge/vm", words: "virtual machines"},
	}
}

// compareSwitches compares a port of Open vSwitch with that of a bridge.
func (s *Suite) compareSwitches(prefix string, port switchPort) {
	if port.bridge != "" {
		s.compare(prefix+port.id, prefix+port.bridge)
	}
}

func (w switchPort) twoHosts(id, overlay string) Path {
	return hostsPath(id, lab.PodB, lab.PodA, lab.Options{Topology: lab.TopologyTwoHosts, Link: w.link, Overlay: overlay, Guests: w.guest})
}

func (w switchPort) sameHost(id string) Path {
	p := podPath(id, w.link)
	p.Link, p.Lab.Guests = resultLink(w.link), w.guest
	p.Route = &evidence.Route{Avoids: []evidence.Device{{Place: lab.Host, Name: podlink.DefaultBridge}}}
	if !w.guest {
		p.Route.Steps = append(p.Route.Steps, evidence.Sends(lab.PodB, lab.IfName), evidence.Receives(lab.PodA, lab.IfName))
	}
	if evidence.Traits(w.link).HostSide {
		p.Route.Steps = append(p.Route.Steps,
			evidence.Receives(lab.Host, lab.HostIfName(lab.PodB)), evidence.Sends(lab.Host, lab.HostIfName(lab.PodA)))
	}
	return p
}

// describeSwitching completes the suite's description: groups, series and statements,
// and notes on the datapath of Open vSwitch.
func describeSwitching(d *result.Suite, rows []result.Row) {
	noteDatapath(d, rows)
	host, bridged := "two-hosts/host", "two-hosts/host-bridge"
	d.Groups = []result.Group{{Caption: "From host to host", Rows: []string{host, bridged}}}
	only := result.Series{Name: "host only", Color: result.ColorGray, Rows: []string{host, host + "/again", bridged}}
	bridge := result.Series{Name: "Linux bridge", Color: result.ColorSlate}
	ovs := result.Series{Name: "Open vSwitch", Color: result.ColorBlue}
	for _, part := range []struct{ prefix, caption string }{
		{"same-host/", "On one host"}, {"two-hosts/", "Across two hosts"}, {"vxlan/", "Across two hosts with VXLAN"},
	} {
		group := result.Group{Caption: part.caption}
		switches := result.Statement{Caption: part.caption + ", Open vSwitch against a bridge", Tally: true}
		for _, port := range switchPorts() {
			id := part.prefix + port.id
			group.Rows = append(group.Rows, id)
			if port.bridge == "" {
				bridge.Rows = append(bridge.Rows, id)
				continue
			}
			ovs.Rows = append(ovs.Rows, id)
			switches.Pairs = append(switches.Pairs, result.Pair{Numerator: id, Denominator: part.prefix + port.bridge, Label: port.words})
		}
		d.Groups = append(d.Groups, group)
		d.Statements = append(d.Statements, switches)
	}
	below := result.Series{Name: "Open vSwitch below a bridge", Color: result.ColorPurple}
	overlays := result.Statement{Caption: "Open vSwitch's VXLAN below a bridge, against the bridge's own"}
	for _, o := range bridgedOverlays() {
		below.Rows = append(below.Rows, o.id)
		label := strings.TrimPrefix(o.id, "vxlan/") + accelerationOf(rows, o.id)
		overlays.Pairs = append(overlays.Pairs, result.Pair{Numerator: o.id, Denominator: o.reference, Label: label})
	}
	last := &d.Groups[len(d.Groups)-1]
	last.Rows = append(last.Rows, below.Rows...)
	d.Statements = append(d.Statements, overlays,
		ranges(rows, "VXLAN, against the same without", "vxlan/", "two-hosts/"),
		ranges(rows, "Two hosts, against the same on one", "two-hosts/", "same-host/"),
		statement("From host to host, the address on a bridge against the uplink's own", bridged, host))
	d.Series = []result.Series{only, bridge, ovs, below}
}

// ranges compares the rows of all ports with two prefixes.
func ranges(rows []result.Row, caption, numerator, denominator string) result.Statement {
	s := result.Statement{Caption: caption}
	for _, port := range switchPorts() {
		id := numerator + port.id
		s.Pairs = append(s.Pairs, result.Pair{Numerator: id, Denominator: denominator + port.id, Label: port.id + accelerationOf(rows, id)})
	}
	return s
}

// noteDatapath notes rows of Open vSwitch's datapath in user space, and puts it into
// the suite's subject if all rows have it.
func noteDatapath(d *result.Suite, rows []result.Row) {
	switched, userSpace := 0, 0
	for _, row := range rows {
		if row.Status != result.StatusOK || !strings.Contains(row.ID, "/ovs") {
			continue
		}
		switched++
		if slices.Contains(strings.Fields(row.Variant), UserSpace) {
			userSpace++
		}
	}
	if userSpace == 0 {
		return
	}
	d.Notes = []string{"Open vSwitch forwarded in user space, as the kernel lacks its datapath."}
	if userSpace == switched {
		d.Subject = "Open vSwitch (in user space)"
	}
}
