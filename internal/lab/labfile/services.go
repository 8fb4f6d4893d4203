// SPDX-License-Identifier: Apache-2.0

package labfile

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"mustang/internal/service"
	"mustang/internal/suggest"
)

func (r *reader) readServices() {
	sets := map[string][]service.Service{} // by host
	for i, f := range r.form.Services {
		field := func(name string) jsontext.Pointer { return at("services", i, name) }
		s := Service{Name: f.Name, Protocol: strings.ToLower(f.Protocol)}
		r.checkName(field("name"), f.Name)
		taken := slices.ContainsFunc(r.lab.Services, func(o Service) bool { return o.Name == f.Name })
		r.require(!taken, field("name"), "there is a service %q already", f.Name)
		r.require(slices.Contains([]string{"", "tcp", "udp"}, s.Protocol), field("protocol"),
			"%q: want tcp or udp, or none for both", f.Protocol)
		s.Hosts = r.translators(i, f.Host)
		s.Addresses = r.frontends(field("address"), f.Address)
		s.Backends = r.backends(field("backends"), f.Backends)
		for _, host := range s.Hosts {
			sets[host] = append(sets[host], r.lab.resolve(s)...)
			r.check(field("address"), service.ValidateSet(sets[host]))
		}
		r.lab.Services = append(r.lab.Services, s)
	}
}

// translators returns the hosts of a service: the named one, or all that can translate it.
func (r *reader) translators(i int, name string) (names []string) {
	others := strings.Join(implementations[Kernel][1:], ", ")
	if name != "" {
		field := at("services", i, "host")
		r.require(r.hostNamed(field, name).Via != "", field,
			"%s lacks an implementation of services: want datapath %s there, or via %s", name, EBPF, others)
		return []string{name}
	}
	for _, h := range r.lab.Hosts {
		if h.Via != "" {
			names = append(names, h.Name)
		}
	}
	r.require(len(names) > 0, at("services", i), "no host has an implementation of services: want datapath %s, or via %s",
		EBPF, others)
	return names
}

// frontends parses the addresses of a service, which nothing else in the lab may have.
func (r *reader) frontends(field jsontext.Pointer, addresses texts) (out []netip.AddrPort) {
	r.require(len(addresses) > 0, field, "it is missing: want ADDRESS:PORT")
	for _, text := range addresses {
		at, err := service.ParseFrontend(text)
		r.check(field, err)
		r.require(!at.Addr().IsUnspecified() && !at.Addr().IsLoopback(), field, "%q: want an unused address", text)
		for _, o := range r.owned {
			r.require(!o.prefix.Contains(at.Addr()), field, "%q is in %v of %s", text, o.prefix, o.by)
		}
		out = append(out, at)
	}
	return out
}

func (r *reader) backends(field jsontext.Pointer, names []string) (out []Backend) {
	r.require(len(names) > 0, field, "it is missing: want POD:PORT")
	pods := r.lab.Places()[len(r.lab.Hosts):]
	for i, text := range names {
		field := field.AppendToken(strconv.Itoa(i))
		pod, number, ok := strings.Cut(text, ":")
		port, err := strconv.ParseUint(number, 10, 16)
		r.require(ok && err == nil && port > 0, field, "%q: want POD:PORT, with a port of 1 to 65535", text)
		r.require(slices.Contains(pods, pod), field, "unknown pod %q (pods: %s)%s", pod, strings.Join(pods, ", "),
			suggest.Text(pod, pods))
		out = append(out, Backend{pod, uint16(port)})
	}
	return out
}
