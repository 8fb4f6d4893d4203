// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"mustang/internal/lab"
	"mustang/internal/podlink"
	"mustang/internal/result"
)

// switching compares a Linux bridge with Open vSwitch: for namespaces and virtual
// machines, on one host and across two, with and without VXLAN.
func switching() Suite {
	s := Suite{
		Name:      "switching",
		Doc:       "Linux bridge against Open vSwitch: namespaces and VMs, one host and two, plain and VXLAN",
		workloads: []workload{tcpStreams(1), tcpStreams(3), udpStreams(1), udpStreams(3)},
	}
	s.addBaseline(across("two-hosts/host", lab.Options{Topology: twoHosts, Link: "host"}, ends{lab.HostB, lab.HostA}))
	bridged := across("two-hosts/host-bridge", lab.Options{Topology: twoHosts, Link: "host-bridge"}, ends{lab.HostB, lab.HostA})
	bridged.variant, bridged.note = "on a bridge", "the host's address is on a bridge that the uplink is a port of"
	s.paths = append(s.paths, bridged)
	s.compare(bridged.id, "two-hosts/host")
	for _, way := range switchedLinks() {
		s.paths = append(s.paths, way.sameHost("same-host/"+way.id))
		s.compareSwitches("same-host/", way)
	}
	for _, way := range switchedLinks() {
		p := way.across("two-hosts/"+way.id, "")
		s.paths = append(s.paths, p)
		s.compareSwitches("two-hosts/", way)
		s.compare(p.id, "two-hosts/host")
		s.compare(p.id, "same-host/"+way.id)
	}
	for _, way := range switchedLinks() {
		s.paths = append(s.paths, way.across("vxlan/"+way.id, lab.OverlayVXLAN))
		s.compareSwitches("vxlan/", way)
		s.compare("vxlan/"+way.id, "two-hosts/"+way.id)
	}
	s.addBridgedOverlays()
	return s
}

// addBridgedOverlays adds VXLAN by an Open vSwitch below a bridge.
func (s *Suite) addBridgedOverlays() {
	for _, way := range []struct{ id, link, overlay, twin, note string }{
		{"vxlan/ovs-bridge/veth", "bridge", lab.OverlayBridgedVeth, "vxlan/bridge/veth", "bridge and Open vSwitch are joined by a veth pair"},
		{"vxlan/ovs-bridge/internal", "bridge", lab.OverlayBridgedInternal, "vxlan/bridge/veth", "bridge and Open vSwitch are joined by an internal port"},
		{"vxlan/ovs-bridge/vm", "tap", lab.OverlayBridgedVeth, "vxlan/bridge/vm", "bridge and Open vSwitch are joined by a veth pair"},
	} {
		p := switchedLink{link: way.link}.across(way.id, way.overlay)
		p.note, p.variant = way.note, "ovs-bridge"
		s.paths = append(s.paths, p)
		s.compare(way.id, way.twin)
	}
}

// switchedLink is a way to plug something into a switch.
type switchedLink struct {
	id, link string
	twin     string // the same at a bridge, if this is at an Open vSwitch
}

// switchedLinks are those of article 003, "kvm" there being "vm" here.
func switchedLinks() []switchedLink {
	return []switchedLink{
		{id: "bridge/veth", link: "bridge"},
		{id: "bridge/vm", link: "tap"},
		{id: "ovs/veth", link: "ovs-veth", twin: "bridge/veth"},
		{id: "ovs/internal", link: "ovs-internal", twin: "bridge/veth"},
		{id: "ovs/vm", link: "ovs-tap", twin: "bridge/vm"},
	}
}

// guests reports whether virtual machines are plugged in.
func (w switchedLink) guests() bool { return w.link == "tap" || w.link == "ovs-tap" }

// compareSwitches sets Open vSwitch against the bridge.
func (s *Suite) compareSwitches(prefix string, w switchedLink) {
	if w.twin != "" {
		s.compare(prefix+w.id, prefix+w.twin)
	}
}

// across returns the path between two hosts.
func (w switchedLink) across(id, overlay string) path {
	return across(id, lab.Options{Topology: twoHosts, Link: w.link, Overlay: overlay, Guests: w.guests()}, ends{lab.PodB, lab.PodA})
}

// sameHost returns the path between two pods of one host.
func (w switchedLink) sameHost(id string) path {
	o := podLinksLab(w.link, lab.DatapathKernel, lab.ViaNone)
	o.Guests = w.guests()
	p := path{link: rowLink(o), lab: o}.toPod(id)
	p.target = result.TargetPodIP
	r := &route{}
	if !o.Guests {
		r.hops = append(r.hops, out(lab.PodB, lab.IfName), in(lab.PodA, lab.IfName))
	}
	if w.link != "ovs-internal" {
		r.hops = append(r.hops, in(lab.Host, lab.HostIfName(lab.PodB)), out(lab.Host, lab.HostIfName(lab.PodA)))
	}
	r.avoids = []device{{lab.Host, podlink.DefaultBridge}}
	p.route = r
	return p
}
