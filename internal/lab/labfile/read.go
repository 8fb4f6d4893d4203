// SPDX-License-Identifier: Apache-2.0

package labfile

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"mustang/internal/document"
	"mustang/internal/qdisc"
	"mustang/internal/service"
	"mustang/internal/suggest"
)

type form struct {
	Name     string               `json:"name"`
	Hosts    map[string]*hostForm `json:"hosts"`
	Wires    []wireForm           `json:"wires"`
	Services []serviceForm        `json:"services"`
}

type hostForm struct {
	Pods     map[string]*podForm `json:"pods"`
	Datapath string              `json:"datapath"`
	Via      string              `json:"via"`
}

type podForm struct {
	Link    string `json:"link"`
	Address texts  `json:"address"`
}

type wireForm struct {
	Endpoints []string `json:"endpoints"`
	Rate      string   `json:"rate"`
	Delay     string   `json:"delay"`
}

type serviceForm struct {
	Name     string   `json:"name"`
	Host     string   `json:"host"`
	Address  texts    `json:"address"`
	Protocol string   `json:"protocol"`
	Backends []string `json:"backends"`
}

type texts []string

// UnmarshalJSON implements json.Unmarshaler.
func (t *texts) UnmarshalJSON(data []byte) error {
	if jsontext.Value(data).Kind() == '"' {
		*t = make(texts, 1)
		return json.Unmarshal(data, &(*t)[0])
	}
	if err := json.Unmarshal(data, (*[]string)(t)); err != nil {
		return errors.New("want a string or a list of strings")
	}
	return nil
}

// reader turns a form into a Lab. It goes on after an error with whatever it has, and keeps the first one.
type reader struct {
	source *document.Source
	form   form
	lab    Lab
	owned  []owned
	places map[string]jsontext.Pointer
	err    error
}

func atLine(source *document.Source, file string, err error) error {
	line, text := 0, err.Error()
	if at := (*document.LineError)(nil); errors.As(err, &at) {
		line, text = at.Line, at.Err.Error()
	} else if field := (*document.FieldError)(nil); errors.As(err, &field) {
		line = source.Line(field.Pointer)
	}
	if line > 0 {
		file = fmt.Sprintf("%s:%d", file, line)
	}
	return fmt.Errorf("%s: %s", file, document.OneLine(text))
}

func at(tokens ...any) (p jsontext.Pointer) {
	for _, token := range tokens {
		p = p.AppendToken(fmt.Sprint(token))
	}
	return p
}

func (r *reader) fail(field jsontext.Pointer, format string, args ...any) {
	if r.err == nil {
		r.err = &document.FieldError{Pointer: field, Err: fmt.Errorf(format, args...)}
	}
}

func (r *reader) require(ok bool, field jsontext.Pointer, format string, args ...any) {
	if !ok {
		r.fail(field, format, args...)
	}
}

func (r *reader) check(field jsontext.Pointer, err error) {
	if err != nil {
		r.fail(field, "%w", err)
	}
}

func inOrder[T any](r *reader, mapping jsontext.Pointer, of map[string]T) []string {
	keys := r.source.Keys(mapping)
	return slices.SortedFunc(maps.Keys(of), func(a, b string) int {
		return cmp.Or(slices.Index(keys, a)-slices.Index(keys, b), cmp.Compare(a, b))
	})
}

// Read reads a file of one lab in YAML or JSON. Errors are one line, which begins with the name of the file, and the
// number of the line if it was found.
func Read(in io.Reader, file string) (*Lab, error) {
	source, err := document.Single(in)
	if err != nil {
		return nil, atLine(source, file, err)
	}
	r := reader{source: source, places: map[string]jsontext.Pointer{}}
	if err := source.Decode(&r.form, json.RejectUnknownMembers(true)); err != nil {
		return nil, atLine(source, file, err)
	}
	r.lab.Name = r.form.Name
	r.checkName(at("name"), r.lab.Name)
	for _, step := range []func(){r.readHosts, r.readWires, r.checkOverlaps, r.readServices, r.lab.addRoutes} {
		if step(); r.err != nil {
			return nil, atLine(source, file, r.err)
		}
	}
	return &r.lab, nil
}

func (r *reader) readWires() {
	if n := len(r.form.Wires); n > maxWires {
		r.fail(at("wires"), "%d wires, at most %d can be", n, maxWires)
		return
	}
	for i, f := range r.form.Wires {
		field := at("wires", i)
		if len(f.Endpoints) != 2 {
			r.fail(field.AppendToken("endpoints"), "want two hosts, got %d", len(f.Endpoints))
			return
		}
		w := Wire{Device: fmt.Sprintf("wire%d", i+1)}
		for end, name := range f.Endpoints {
			r.hostNamed(at("wires", i, "endpoints", end), name)
			w.Ends[end] = End{Host: name, Addresses: plannedWire(i+1, end+1)}
		}
		r.require(f.Endpoints[0] != f.Endpoints[1], field.AppendToken("endpoints"), "both ends are at %s", f.Endpoints[0])
		var err error
		if f.Rate != "" {
			w.Rate, err = qdisc.ParseRate(f.Rate)
			r.check(field.AppendToken("rate"), err)
		}
		if f.Delay != "" {
			w.Delay, err = time.ParseDuration(f.Delay)
			r.require(err == nil, field.AppendToken("delay"), "%q: want a time such as 1ms", f.Delay)
			r.check(field.AppendToken("delay"), qdisc.CheckEmulation(0, w.Delay))
		}
		for _, prefix := range w.Ends[0].Addresses {
			r.owned = append(r.owned, owned{prefix.Masked(), w.Device, field})
		}
		r.lab.Wires = append(r.lab.Wires, w)
	}
}

// addRoutes gives each host routes to the other hosts' prefixes, over the fewest wires. Among ways of equal length it
// takes the wire that comes first in the file, seen from the destination. A wire's own range belongs to its first end.
func (l *Lab) addRoutes() {
	for _, to := range l.Hosts {
		hops := l.hopsTo(to.Name)
		for i := range l.Hosts {
			from := &l.Hosts[i]
			hop, ok := hops[from.Name]
			if !ok {
				continue
			}
			add := func(prefix netip.Prefix) {
				from.Routes = append(from.Routes, Route{prefix.Masked(), hop[family(prefix.Addr())].Addr()})
			}
			for _, n := range to.Networks {
				for _, gateway := range n.Gateways {
					add(gateway)
				}
			}
			if len(to.Networks) == 0 {
				for _, addr := range to.Addresses {
					add(netip.PrefixFrom(addr, addr.BitLen()))
				}
			}
			for _, w := range l.Wires {
				if w.Ends[0].Host == to.Name && w.Ends[1].Host != from.Name {
					for _, prefix := range w.Ends[0].Addresses {
						add(prefix)
					}
				}
			}
		}
	}
}

// hopsTo returns the next hop from each other host to one, where a path of wires leads there: breadth first.
func (l *Lab) hopsTo(to string) map[string][]netip.Prefix {
	hops := map[string][]netip.Prefix{}
	for queue := []string{to}; len(queue) > 0; queue = queue[1:] {
		for _, w := range l.Wires {
			for near := range w.Ends {
				from := w.Ends[1-near].Host
				if _, seen := hops[from]; w.Ends[near].Host == queue[0] && !seen && from != to {
					hops[from] = w.Ends[near].Addresses
					queue = append(queue, from)
				}
			}
		}
	}
	return hops
}

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
