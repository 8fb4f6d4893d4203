// SPDX-License-Identifier: Apache-2.0

package labfile

import (
	"fmt"
	"net/netip"
	"time"

	"mustang/internal/qdisc"
)

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
