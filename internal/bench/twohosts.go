// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"net/netip"

	"mustang/internal/lab"
	"mustang/internal/result"
)

// Topologies of labs with two hosts.
const (
	twoHosts  = "two-hosts"
	podToHost = "pod-to-host"
	// podToNetwork is podToHost with a peer in the place of the plain host.
	podToNetwork = "pod-to-network"
)

// across returns the path of a lab with two hosts from a place on the one to a
// place on the other.
func across(id string, o lab.Options, ends ends) path {
	if o.Datapath == "" {
		o.Datapath = lab.DatapathKernel
		o.Via = lab.ViaNone
	}
	p := path{
		id: id, link: rowLink(o), lab: o, client: ends.client, server: ends.server,
		target: result.TargetPodIP, via: result.ViaNone, route: routeAcross(o, ends),
	}
	if ends.server == lab.HostA {
		p.target = result.TargetHostIP
	}
	if o.Overlay != "" && o.Overlay != lab.OverlayNone {
		p.overlay = result.OverlayVXLAN
	}
	p.listen = netip.AddrPortFrom(lab.Addresses(o, ends.server)[0], lab.ServicePort)
	p.connect = p.listen
	return p
}

// ends are where the client and the server of a path are.
type ends struct{ client, server string }

// rowLink is the lab's link in the words of the result file.
func rowLink(o lab.Options) string {
	switch o.Link {
	case "host-bridge":
		return "host"
	case "ovs-tap":
		return "tap"
	}
	return o.Link
}

// routeAcross is what packets pass from one host to the other.
func routeAcross(o lab.Options, e ends) *route {
	r := &route{wire: true}
	r.hops = append(r.hops, sideOut(o, e.client, lab.HostB)...)
	switch o.Topology {
	case podToNetwork:
		r.hops = append(r.hops, out(thisMachine, o.Parent.Device))
	case podToHost:
		r.hops = append(r.hops, in(lab.HostA, lab.Uplink))
	default:
		r.hops = append(r.hops, flip(sideOut(o, e.server, lab.HostA), func(place string) string { return place })...)
	}
	if o.NAT && e.client == lab.PodB {
		r.seenAs, r.translatedAt = lab.Addresses(o, lab.HostB)[0], lab.HostB
	}
	if o.Datapath == lab.DatapathEBPF {
		r.programs = []string{"from_pod"}
	}
	return r
}

// sideOut is the devices that packets pass on their way out of a place and its
// host.
func sideOut(o lab.Options, place, host string) []hop {
	uplink := out(host, lab.Uplink)
	if place == host {
		return []hop{uplink}
	}
	var hops []hop
	if !o.Guests {
		hops = append(hops, out(place, lab.IfName))
	}
	if !stacked(o.Link) && o.Link != "ovs-internal" {
		hops = append(hops, in(host, lab.HostIfName(place)))
	}
	if o.NAT && o.Link == "bridge" {
		hops = append(hops, in(host, "mst0"))
	}
	if o.Topology == podToNetwork && o.Link == "macvlan" {
		return hops // the pod's device is beside the uplink, which is one itself
	}
	return append(hops, uplink)
}

// stacked reports whether a link's devices sit on the uplink, with nothing
// between.
func stacked(link string) bool {
	switch link {
	case "macvlan", "ipvlan-l2", "ipvlan-l3", "ipvlan-l3s":
		return true
	}
	return false
}
