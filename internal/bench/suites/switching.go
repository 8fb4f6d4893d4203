// SPDX-License-Identifier: Apache-2.0

package suites

import (
	"strings"

	"mustang/internal/bench/evidence"
	"mustang/internal/lab"
	"mustang/internal/podlink"
	"mustang/internal/result"
)

type switchPort struct {
	id, link string
	guest    bool   // the pod is a VM
	bridge   string // for Open vSwitch, the ID of the same port on a Linux bridge
	words    string // the comparison with it in words
	repeated bool   // the path on one host is measured twice: one of each class of noise
}

var switchPorts = []switchPort{
	{id: "bridge/veth", link: "bridge"},
	{id: "bridge/vm", link: "tap", guest: true, repeated: true},
	{id: "ovs/veth", link: "ovs-veth", bridge: "bridge/veth", words: "namespaces on veth", repeated: true},
	{id: "ovs/internal", link: "ovs-internal", bridge: "bridge/veth", words: "namespaces on internal ports against veth"},
	{id: "ovs/vm", link: "ovs-tap", guest: true, bridge: "bridge/vm", words: "virtual machines"},
}

// bridgedOverlays are VXLAN tunnels of an Open vSwitch below a Linux bridge, and, to compare, the bridge's own tunnels.
var bridgedOverlays = []struct {
	id, reference, note string
	port                switchPort
	overlay             string
}{
	{"vxlan/ovs-bridge/veth", "vxlan/bridge/veth", "bridge and Open vSwitch are joined by a veth pair", switchPorts[0],
		lab.OverlayBridgedVeth},
	{"vxlan/ovs-bridge/internal", "vxlan/bridge/veth", "bridge and Open vSwitch are joined by an internal port",
		switchPorts[0], lab.OverlayBridgedInternal},
	{"vxlan/ovs-bridge/vm", "vxlan/bridge/vm", "bridge and Open vSwitch are joined by a veth pair", switchPorts[1],
		lab.OverlayBridgedVeth},
}

func switching() Suite {
	s := newSuite("Is a Linux bridge or Open vSwitch faster, for namespaces and for virtual machines, on one host and across two, "+
		"with and without VXLAN?", tcpStreams(1), tcpStreams(3), udpStreams(1), udpStreams(3))
	r := &s.Report
	r.Answer, r.Variants = []string{result.AnswerTally, result.AnswerStatements}, true
	r.Subject, r.Object = "Open vSwitch", "a Linux bridge"
	host := hostsPath("two-hosts/host", lab.HostB, lab.HostA, lab.Options{Link: lab.LinkHost})
	bridged := hostsPath("two-hosts/host-bridge", lab.HostB, lab.HostA, lab.Options{Link: lab.LinkHostBridge})
	bridged.Variant, bridged.Note = "on a bridge", "the host's address is on a bridge with the uplink as a port"
	s.addBaseline(host)
	s.add(bridged, host.ID)
	series := []result.Series{
		{Name: "host only", Color: result.ColorGray, Rows: []string{host.ID, host.ID + "/again", bridged.ID}},
		{Name: "Linux bridge", Color: result.ColorSlate}, {Name: "Open vSwitch", Color: result.ColorBlue},
		{Name: "Open vSwitch below a bridge", Color: result.ColorPurple},
	}
	overlays := result.Statement{Caption: "Open vSwitch's VXLAN below a bridge, against the bridge's own"}
	vxlan := result.Statement{Caption: "VXLAN, against the same without"}
	twoHosts := result.Statement{Caption: "Two hosts, against the same on one"}
	r.Groups = []result.Group{{Caption: "From host to host", Rows: []string{host.ID, bridged.ID}}}
	for _, part := range []struct {
		prefix, caption, overlay string
		than                     []string // IDs, or beginnings of them
		statement                *result.Statement
	}{
		{prefix: "same-host/", caption: "On one host"},
		{"two-hosts/", "Across two hosts", "", []string{host.ID, "same-host/"}, &twoHosts},
		{"vxlan/", "Across two hosts with VXLAN", lab.OverlayVXLAN, []string{"two-hosts/"}, &vxlan},
	} {
		group := result.Group{Caption: part.caption}
		switches := result.Statement{Caption: part.caption + ", Open vSwitch against a bridge", Tally: true}
		for _, port := range switchPorts {
			p := port.twoHosts(part.prefix+port.id, part.overlay)
			if part.statement != nil {
				s.add(p)
			} else if p = port.sameHost(p.ID); port.repeated {
				s.addBaseline(p)
			} else {
				s.add(p)
			}
			of := &series[1]
			if port.bridge != "" {
				of = &series[2]
				s.compare(p.ID, part.prefix+port.bridge)
				switches.Pairs = append(switches.Pairs, pairOf(p.ID, part.prefix+port.bridge, port.words))
			}
			of.Rows, group.Rows = append(of.Rows, p.ID), append(group.Rows, p.ID)
			for _, than := range part.than {
				if strings.HasSuffix(than, "/") {
					than += port.id
					part.statement.Pairs = append(part.statement.Pairs, pairOf(p.ID, than, port.id))
				}
				s.compare(p.ID, than)
			}
		}
		r.Groups, r.Statements = append(r.Groups, group), append(r.Statements, switches)
	}
	for _, o := range bridgedOverlays {
		p := o.port.twoHosts(o.id, o.overlay)
		p.Note, p.Variant = o.note, "ovs-bridge"
		s.add(p, o.reference)
		series[3].Rows, r.Groups[3].Rows = append(series[3].Rows, o.id), append(r.Groups[3].Rows, o.id)
		overlays.Pairs = append(overlays.Pairs, pairOf(o.id, o.reference, strings.TrimPrefix(o.id, "vxlan/")))
	}
	r.Series = series
	r.Statements = append(r.Statements, overlays, vxlan, twoHosts,
		statement("From host to host, the address on a bridge against the uplink's own", bridged.ID, host.ID))
	return s
}

func (w switchPort) twoHosts(id, overlay string) Path {
	return hostsPath(id, lab.PodB, lab.PodA, lab.Options{Link: w.link, Overlay: overlay, Guests: w.guest})
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
