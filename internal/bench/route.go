// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"cmp"
	"net/netip"
	"strings"

	"mustang/internal/lab"
	"mustang/internal/podlink"
)

// route is what the packets of a path pass.
type route struct {
	hops []hop
	// avoids are devices that its packets must not pass.
	avoids []device
	// wire is whether it leads from one host to another.
	wire bool
	// seenAs is the client's address in the eyes of the server, if not its own.
	seenAs netip.Addr
	// translatedAt is the place whose kernel changes an address on the way.
	translatedAt string
	// programs are counters of our own programs that rise with each packet of the
	// client.
	programs []string
}

// hop is a device on the way, and what it counts of packets on their way to the
// server. Of those on their way back it counts the opposite.
type hop struct {
	device
	forth way
}

func out(place, name string) hop  { return hop{device{place, name}, sent} }
func in(place, name string) hop   { return hop{device{place, name}, received} }
func over(place, name string) hop { return hop{device{place, name}, both} }

// hostSideOf stands for the host's device of a container's link, whose name is
// only known when the lab stands.
const hostSideOf = "the host's side of "

// resolve puts true names in the place of those that were not known.
func (r route) resolve(l *lab.Lab) (route, error) {
	named := r
	named.hops = nil
	for _, h := range r.hops {
		if place, ok := strings.CutPrefix(h.name, hostSideOf); ok {
			name, err := l.HostDevice(place)
			if err != nil {
				return r, err
			}
			h.name = name
		}
		if own := l.Device(h.place); h.name == lab.IfName && own != "" {
			h.name = own // of some links another
		}
		named.hops = append(named.hops, h)
	}
	return named, nil
}

// check compares the packets at each device with those that the path has or must
// not have there.
func (r route) check(w witness, add adder) {
	forth, back := w.packets()
	for _, h := range r.hops {
		var rx, tx uint64
		if h.forth&received != 0 {
			rx, tx = rx+forth, tx+back
		}
		if h.forth&sent != 0 {
			rx, tx = rx+back, tx+forth
		}
		if h.forth == both {
			rx, tx = min(forth, rx), min(forth, tx)
		}
		w.on(add, h.device, rx, tx)
	}
	for _, d := range r.avoids {
		w.off(add, d, both)
	}
}

// flip is the same hops from the other end: what the client's side sends, the
// server's side receives.
func flip(hops []hop, place func(string) string) []hop {
	var flipped []hop
	for i := len(hops) - 1; i >= 0; i-- {
		h := hops[i]
		h.place = place(h.place)
		if h.forth != both {
			h.forth ^= both
		}
		flipped = append(flipped, h)
	}
	return flipped
}

// probe returns why this machine can't build the path's network, nil if nothing
// is known to be in the way.
func (p path) probe() error {
	if p.plugin != nil {
		return cmp.Or(probeLink(p.link), p.plugin.probe())
	}
	mode, err := podlink.Lookup(p.lab.Link)
	if err != nil {
		return nil // of hosts, containers or virtual machines: the lab says when it is built
	}
	return mode.Probe()
}
