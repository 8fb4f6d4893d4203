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

// Limits of a lab, of which the plan of addresses has one number for each.
const (
	maxHosts = 64
	maxWires = 250
)

// Outside is a place that a lab has besides those of the file if a link mode needs an uplink.
const Outside = "outside"

// reserved are names that no place can have.
var reserved = []string{Outside, "localhost"}

var validName = regexp.MustCompile("^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$")

// implementations are those of services, by datapath. The first is that of a host that names none.
var implementations = map[string][]string{
	Kernel: {"", "iptables", "nftables", "ipvs"},
	EBPF:   {"ebpf-tc"},
}

// checkName checks the name of a lab, a place or a service.
func checkName(field jsontext.Pointer, name string) error {
	switch {
	case name == "":
		return wrong(field, "it is missing")
	case !validName.MatchString(name):
		return wrong(field, "name %q: want 1 to 40 lower-case letters, digits and dashes", name)
	}
	return nil
}

func (r *reader) readName() error {
	r.lab.Name = r.form.Name
	return checkName(at("name"), r.lab.Name)
}

// addPlace checks the name of a host or a pod.
func (r *reader) addPlace(field jsontext.Pointer, name string) error {
	if err := checkName(field, name); err != nil {
		return err
	}
	if slices.Contains(reserved, name) {
		return wrong(field, "%q is not a name for a place", name)
	}
	if first, ok := r.places[name]; ok {
		return wrong(field, "there is a %q already, in line %d", name, r.source.Line(first))
	}
	r.places[name] = field
	return nil
}

func (r *reader) readHosts() error {
	hosts := at("hosts")
	switch n := len(r.form.Hosts); {
	case n == 0:
		return wrong(hosts, "it is missing: a lab has a host at least")
	case n > maxHosts:
		return wrong(hosts, "%d hosts, at most %d can be", n, maxHosts)
	}
	for _, name := range inOrder(r, hosts, r.form.Hosts) {
		if err := r.addPlace(at("hosts", name), name); err != nil {
			return err
		}
		if err := r.readHost(name, r.form.Hosts[name]); err != nil {
			return err
		}
	}
	return nil
}

func (r *reader) readHost(name string, f *hostForm) error {
	f = cmp.Or(f, &hostForm{})
	h := Host{Name: name, Datapath: cmp.Or(f.Datapath, Kernel)}
	via, ok := implementations[h.Datapath]
	switch {
	case !ok:
		return wrong(at("hosts", name, "datapath"), "%q: want %s or %s", f.Datapath, Kernel, EBPF)
	case !slices.Contains(append(slices.Clone(via), ""), f.Via):
		return wrong(at("hosts", name, "via"), "%q: datapath %s takes %s", f.Via, h.Datapath,
			strings.Trim(strings.Join(via, ", "), ", "))
	}
	h.Via = cmp.Or(f.Via, via[0])
	number := len(r.lab.Hosts) + 1
	fields := map[string]jsontext.Pointer{} // of the first pod of a link
	for i, pod := range inOrder(r, at("hosts", name, "pods"), f.Pods) {
		field := at("hosts", name, "pods", pod)
		if err := r.addPlace(field, pod); err != nil {
			return err
		}
		f.Pods[pod] = cmp.Or(f.Pods[pod], &podForm{})
		link := cmp.Or(f.Pods[pod].Link, "veth")
		at := slices.IndexFunc(h.Networks, func(n Network) bool { return n.Link == link })
		if at < 0 {
			fields[link] = field.AppendToken("link")
			if err := checkLink(fields[link], link); err != nil {
				return err
			}
			at = len(h.Networks)
			h.Networks = append(h.Networks, Network{Link: link, Gateways: planned(number, at)})
		}
		h.Networks[at].Pods = append(h.Networks[at].Pods, Pod{Name: pod, HostIfName: deviceOf(pod, i)})
	}
	if err := r.checkLayer3(h, fields); err != nil {
		return err
	}
	for i := range h.Networks {
		if err := r.assign(name, f.Pods, &h.Networks[i]); err != nil {
			return err
		}
	}
	r.ownAddresses(&h, number)
	r.lab.Hosts = append(r.lab.Hosts, h)
	return nil
}

// checkLink checks the link mode of a pod.
func checkLink(field jsontext.Pointer, link string) error {
	mode, err := podlink.Lookup(link)
	if err != nil {
		return wrong(field, "%w", err)
	}
	if mode.Traits().GuestsOnly {
		return wrong(field, "link %s: only for guests", link)
	}
	return nil
}

// isLayer3 reports whether the kernel looks for the routes of a pod's IPv4 packets on the uplink alone.
func isLayer3(link string) bool {
	mode, err := podlink.Lookup(link)
	return err == nil && mode.Traits().Layer3 && mode.Traits().Needs == podlink.NeedsUplink
}

// checkLayer3 refuses link modes whose pods would reach nobody but each other.
func (r *reader) checkLayer3(h Host, fields map[string]jsontext.Pointer) error {
	wired := slices.ContainsFunc(r.form.Wires, func(w wireForm) bool { return slices.Contains(w.Endpoints, h.Name) })
	for _, n := range h.Networks {
		if isLayer3(n.Link) && (wired || len(h.Networks) > 1) {
			return wrong(fields[n.Link],
				"link %s: only on a host without wires, whose pods all have it, as they reach each other alone", n.Link)
		}
	}
	return nil
}

// hostNamed returns the host of a name that stands in a field.
func (r *reader) hostNamed(field jsontext.Pointer, name string) (*Host, error) {
	var known []string
	for i, h := range r.lab.Hosts {
		if h.Name == name {
			return &r.lab.Hosts[i], nil
		}
		known = append(known, h.Name)
	}
	return nil, wrong(field, "unknown host %q (hosts: %s)%s", name, strings.Join(known, ", "), suggest.Text(name, known))
}
