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

func (r *reader) readServices() error {
	sets := map[string][]service.Service{} // by host
	names := map[string]bool{}
	for i, f := range r.form.Services {
		s := Service{Name: f.Name, Protocol: strings.ToLower(f.Protocol)}
		if err := checkName(at("services", i, "name"), f.Name); err != nil {
			return err
		}
		switch {
		case names[f.Name]:
			return wrong(at("services", i, "name"), "there is a service %q already", f.Name)
		case !slices.Contains([]string{"", "tcp", "udp"}, s.Protocol):
			return wrong(at("services", i, "protocol"), "%q: want tcp or udp, or none for both", f.Protocol)
		}
		names[f.Name] = true
		var err error
		if s.Hosts, err = r.translators(i, f.Host); err != nil {
			return err
		}
		if s.Addresses, err = r.frontends(at("services", i, "address"), f.Address); err != nil {
			return err
		}
		if s.Backends, err = r.backends(i, f.Backends); err != nil {
			return err
		}
		for _, host := range s.Hosts {
			sets[host] = append(sets[host], r.lab.resolve(s)...)
			if err := service.ValidateSet(sets[host]); err != nil {
				return wrong(at("services", i, "address"), "%w", err)
			}
		}
		r.lab.Services = append(r.lab.Services, s)
	}
	return nil
}

// translators returns the hosts of a service: the one that it names, or all that can translate it.
func (r *reader) translators(i int, name string) ([]string, error) {
	if name != "" {
		h, err := r.hostNamed(at("services", i, "host"), name)
		if err == nil && h.Via == "" {
			err = wrong(at("services", i, "host"), "%s lacks an implementation of services: want datapath %s there, or via %s",
				name, EBPF, strings.Join(implementations[Kernel][1:], ", "))
		}
		return []string{name}, err
	}
	var names []string
	for _, h := range r.lab.Hosts {
		if h.Via != "" {
			names = append(names, h.Name)
		}
	}
	if len(names) == 0 {
		return nil, wrong(at("services", i), "no host has an implementation of services: want datapath %s, or via %s",
			EBPF, strings.Join(implementations[Kernel][1:], ", "))
	}
	return names, nil
}

// frontends parses the addresses of a service, which are nobody's in the lab.
func (r *reader) frontends(field jsontext.Pointer, addresses texts) ([]netip.AddrPort, error) {
	if len(addresses) == 0 {
		return nil, wrong(field, "it is missing: want ADDRESS:PORT")
	}
	var out []netip.AddrPort
	for _, text := range addresses {
		at, err := service.ParseFrontend(text)
		if err != nil {
			return nil, wrong(field, "%w", err)
		}
		if at.Addr().IsUnspecified() || at.Addr().IsLoopback() {
			return nil, wrong(field, "%q: want an unused address", text)
		}
		for _, o := range r.owned {
			if o.prefix.Contains(at.Addr()) {
				return nil, wrong(field, "%q is in %v of %s", text, o.prefix, o.by)
			}
		}
		out = append(out, at)
	}
	return out, nil
}

// backends parses backends such as web:8080.
func (r *reader) backends(i int, names []string) ([]Backend, error) {
	if len(names) == 0 {
		return nil, wrong(at("services", i, "backends"), "it is missing: want POD:PORT")
	}
	var pods []string
	for _, place := range r.lab.Places() {
		if r.lab.HostOf(place).Name != place {
			pods = append(pods, place)
		}
	}
	var out []Backend
	for j, text := range names {
		field := at("services", i, "backends", j)
		pod, number, ok := strings.Cut(text, ":")
		port, err := strconv.ParseUint(number, 10, 16)
		switch {
		case !ok || err != nil || port == 0:
			return nil, wrong(field, "%q: want POD:PORT, with a port of 1 to 65535", text)
		case !slices.Contains(pods, pod):
			return nil, wrong(field, "unknown pod %q (pods: %s)%s", pod, strings.Join(pods, ", "), suggest.Text(pod, pods))
		}
		out = append(out, Backend{pod, uint16(port)})
	}
	return out, nil
}
