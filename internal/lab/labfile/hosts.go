// SPDX-License-Identifier: Apache-2.0

package labfile

import (
	"cmp"
	"regexp"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"mustang/internal/podlink"
	"mustang/internal/suggest"
)

// Limits of a lab: the plan of addresses has one number for each host and wire.
const (
	maxHosts = 64
	maxWires = 250
)

// Outside is a further place, which a lab has if a link mode needs an uplink.
const Outside = "outside"

var reserved = []string{Outside, "localhost"}

var validName = regexp.MustCompile("^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$")

// implementations are the implementations of services, by datapath. The first is the default of a host.
var implementations = map[string][]string{
	Kernel: {"", "iptables", "nftables", "ipvs"}, EBPF: {"ebpf-tc"},
}

func (r *reader) checkName(field jsontext.Pointer, name string) {
	r.require(name != "", field, "it is missing")
	r.require(validName.MatchString(name), field, "name %q: want 1 to 40 lower-case letters, digits and dashes", name)
}

func (r *reader) addPlace(field jsontext.Pointer, name string) {
	r.checkName(field, name)
	r.require(!slices.Contains(reserved, name), field, "%q is not a name for a place", name)
	if first, taken := r.places[name]; taken {
		r.fail(field, "there is a %q already, in line %d", name, r.source.Line(first))
	}
	r.places[name] = field
}

func (r *reader) readHosts() {
	hosts, n := at("hosts"), len(r.form.Hosts)
	r.require(n > 0, hosts, "it is missing: a lab has a host at least")
	if n > maxHosts {
		r.fail(hosts, "%d hosts, at most %d can be", n, maxHosts)
		return
	}
	for _, name := range inOrder(r, hosts, r.form.Hosts) {
		r.addPlace(at("hosts", name), name)
		r.readHost(name, cmp.Or(r.form.Hosts[name], &hostForm{}))
	}
}

func (r *reader) readHost(name string, f *hostForm) {
	h := Host{Name: name, Datapath: cmp.Or(f.Datapath, Kernel)}
	via, ok := implementations[h.Datapath]
	if !ok {
		r.fail(at("hosts", name, "datapath"), "%q: want %s or %s", f.Datapath, Kernel, EBPF)
		return
	}
	r.require(f.Via == "" || slices.Contains(via, f.Via), at("hosts", name, "via"), "%q: datapath %s takes %s", f.Via,
		h.Datapath, strings.TrimPrefix(strings.Join(via, ", "), ", "))
	h.Via = cmp.Or(f.Via, via[0])
	number := len(r.lab.Hosts) + 1
	for i, pod := range inOrder(r, at("hosts", name, "pods"), f.Pods) {
		if r.err != nil {
			return
		}
		field := at("hosts", name, "pods", pod)
		r.addPlace(field, pod)
		f.Pods[pod] = cmp.Or(f.Pods[pod], &podForm{})
		link := cmp.Or(f.Pods[pod].Link, "veth")
		at := slices.IndexFunc(h.Networks, func(n Network) bool { return n.Link == link })
		if at < 0 {
			at = len(h.Networks)
			h.Networks = append(h.Networks, Network{Link: link, Gateways: planned(number, at)})
			r.checkLink(field.AppendToken("link"), name, link)
		}
		h.Networks[at].Pods = append(h.Networks[at].Pods, Pod{Name: pod, HostIfName: deviceOf(pod, i)})
	}
	for i := range h.Networks {
		r.assign(name, f.Pods, &h.Networks[i])
	}
	r.ownAddresses(&h, number)
	r.lab.Hosts = append(r.lab.Hosts, h)
}

// checkLink rejects a second network where the kernel looks for routes of a pod's packets on the uplink alone.
func (r *reader) checkLink(field jsontext.Pointer, host, link string) {
	mode, err := podlink.Lookup(link)
	if err != nil {
		r.check(field, err)
		return
	}
	traits := mode.Traits()
	alone := !slices.ContainsFunc(r.form.Wires, func(w wireForm) bool { return slices.Contains(w.Endpoints, host) })
	for _, p := range r.form.Hosts[host].Pods {
		alone = alone && p != nil && cmp.Or(p.Link, "veth") == link
	}
	r.require(!traits.GuestsOnly, field, "link %s: only for guests", link)
	r.require(alone || !traits.Layer3 || traits.Needs != podlink.NeedsUplink, field,
		"link %s: its pods reach only each other and the host, so no wires and no other links there", link)
}

func (r *reader) hostNamed(field jsontext.Pointer, name string) Host {
	var known []string
	for _, h := range r.lab.Hosts {
		if h.Name == name {
			return h
		}
		known = append(known, h.Name)
	}
	r.fail(field, "unknown host %q (hosts: %s)%s", name, strings.Join(known, ", "), suggest.Text(name, known))
	return Host{}
}
