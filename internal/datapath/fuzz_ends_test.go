// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"

	"mustang/internal/datapath/objects"
)

// served returns the backends of a frontend; none if it is none.
func (n *node) served(proto uint8, frontend netip.AddrPort) []netip.AddrPort {
	for _, w := range n.worlds {
		switch {
		case w.proto != proto:
		case frontend == w.service:
			return []netip.AddrPort{w.backend}
		case frontend == w.other:
			return []netip.AddrPort{w.backend, w.remote}
		}
	}
	return nil
}

func (n *node) frontendOf(proto uint8, frontend, backend netip.AddrPort) bool {
	return slices.Contains(n.served(proto, frontend), backend)
}

func (n *node) wrongEnds(o outcome, seen, now view) string {
	forward, reverse := o.counted["forward"] > 0, o.counted["reverse"] > 0
	same := seen.src == now.src && seen.dst == now.dst
	switch {
	case o.counted["icmp_error"] > 0:
		return n.wrongError(o, seen, now)
	case forward && reverse:
		return "translated in both directions"
	case forward:
		return n.wrongForward(o, seen, now)
	case reverse:
		return n.wrongReverse(o, seen, now)
	case !same:
		return "its ends changed, which was not counted"
	case n.mustForward(o, seen):
		return "for a service, but not translated"
	case n.mustReverse(o, seen):
		return "a reply from a service, but not translated"
	}
	return ""
}

// mustForward reports whether the packet is for a service and not the end of a connection.
func (n *node) mustForward(o outcome, seen view) bool {
	if !seen.ports || seen.flags&(flagFIN|flagRST) != 0 || n.served(seen.proto, seen.dst) == nil {
		return false
	}
	switch o.hook.Program {
	case "from_pod":
		return true
	case "from_uplink": // to this host, and not from one of its pods
		return o.toHost() && !slices.ContainsFunc(n.worlds, func(w *world) bool {
			return seen.src.Addr() == w.client.Addr() || seen.src.Addr() == w.backend.Addr()
		})
	}
	return false
}

// mustReverse reports whether the packet is of an open connection between pods, and from_pod of a veth sees it.
func (n *node) mustReverse(o outcome, seen view) bool {
	return o.hook == fromHost && seen.ports && seen.flags&(flagSYN|flagFIN|flagRST) == 0 &&
		slices.ContainsFunc(n.worlds, func(w *world) bool {
			return w.proto == seen.proto && w.backend == seen.src && w.client == seen.dst
		})
}

// wrongForward checks a packet from a client to a service.
func (n *node) wrongForward(o outcome, seen, now view) string {
	if strings.HasPrefix(o.hook.Program, "to_") {
		return "a program that only translates replies translated a request"
	}
	if seen.later {
		return n.wrongLater(seen, now, func(w *world) bool {
			return seen.src.Addr() == w.client.Addr() && seen.dst.Addr() == w.service.Addr() && now.src == seen.src &&
				now.dst.Addr() == w.backend.Addr()
		})
	}
	hairpin := now.src.Addr() == seen.dst.Addr() && now.dst.Addr() == seen.src.Addr()
	switch moved := o.counted["port_changed"] > 0; {
	case now.src.Addr() != seen.src.Addr() && !hairpin:
		return "the client's address changed"
	case now.src.Port() != seen.src.Port() && !moved:
		return "the client's port changed"
	case now.dst == seen.dst && moved: // to a backend itself, from a port that is in use for a service
		return ""
	case !n.frontendOf(seen.proto, seen.dst, now.dst):
		return "to no backend of the service"
	}
	return ""
}

// wrongReverse checks a packet from a backend to a client.
func (n *node) wrongReverse(_ outcome, seen, now view) string {
	if seen.later {
		return n.wrongLater(seen, now, func(*world) bool { return false }) // the first fragments here are all from clients
	}
	hairpin := now.src.Addr() == seen.dst.Addr() && now.dst.Addr() == seen.src.Addr()
	switch {
	case !n.frontendOf(seen.proto, now.src, seen.src):
		return "from no service of the backend"
	case now.dst.Addr() != seen.dst.Addr() && !hairpin, now.dst.Port() != seen.dst.Port():
		return "to another client"
	}
	return ""
}

// wrongLater checks a fragment without ports.
func (n *node) wrongLater(seen, now view, right func(*world) bool) string {
	if !slices.ContainsFunc(n.worlds, func(w *world) bool { return w.proto == seen.proto && right(w) }) {
		return "a later fragment of no packet that was seen"
	}
	if now.src.Port() != 0 || now.dst.Port() != 0 {
		return "a later fragment with ports"
	}
	return ""
}

// wrongError checks a translated ICMP error, which must quote the packet that its receiver sent.
func (n *node) wrongError(o outcome, seen, now view) string {
	if !seen.icmpError {
		return "no ICMP error, but counted as one"
	}
	before, ok := seen.quote(o.in)
	after, okAfter := now.quote(o.out[len(o.out)-len(o.in):])
	switch {
	case !ok || !okAfter || before.proto != after.proto:
		return "it quotes too little of a packet to know it"
	case before.src.Addr() != seen.dst.Addr() || after.src.Addr() != now.dst.Addr():
		return "it is not for the sender of the quoted packet"
	case now.src != seen.src && seen.src.Addr() != before.dst.Addr():
		return "its source changed, which is not the other end"
	case !n.frontendOf(before.proto, after.dst, before.dst) && !n.frontendOf(before.proto, before.src, after.src):
		return "it quotes no packet of a service"
	}
	return ""
}

// random returns a hook by its number, and a packet that may be anything, mostly something near a service.
func (n *node) random(r *rand.Rand) (hook byte, p packet) {
	hook = byte(r.IntN(len(fuzzedHooks())))
	w := n.worlds[r.IntN(len(n.worlds))]
	p = w.randomPacket(r)
	if r.IntN(4) == 0 {
		quote := w.randomPacket(r)
		if known := [][2]netip.AddrPort{{w.client, w.backend}, {w.service, w.client},
			{w.service, w.outsider}}; r.IntN(2) == 0 {
			ends := pick(r, known...)
			quote.src, quote.dst, quote.proto = ends[0], ends[1], w.proto
		}
		quote.payload = "quoted"
		p = w.icmp(p.src.Addr(), quote.src.Addr(), pick(r, uint8(3), 3, 3, 11, 12, 8), pick(r, uint8(1), 1, 2, 3, 4, 128,
			135)).about(quote)
		p.quoteBytes = min(pick(r, 0, 0, 4, 8, 16, 20), len(quote.transport()))
	}
	switch fuzzedHooks()[hook].Point {
	case objects.AttachUplink:
		p = p.arriving("aa")
	case objects.AttachTun:
		p = p.without()
	}
	if mangled, value := r.IntN(60), byte(r.Uint32()); r.IntN(8) == 0 {
		p.mangle = func(ip []byte) { ip[mangled%len(ip)] = value }
	}
	return hook, p
}

func (w *world) randomPacket(r *rand.Rand) packet {
	ends := []netip.AddrPort{w.client, w.backend, w.remote, w.service, w.other, w.outsider}
	p := packet{src: pick(r, ends...), dst: pick(r, append(ends, w.client, w.service, w.service, w.other)...),
		proto: pick(r, w.proto, w.proto, w.proto, w.proto, protoTCP, protoUDP, protoICMP, protoSCTP)}
	if p.src == w.service || p.src == w.other || r.IntN(2) == 0 {
		p.src = pick(r, w.client, netip.AddrPortFrom(w.client.Addr(), 40001), w.backend,
			netip.AddrPortFrom(w.backend.Addr(), 40000))
	}
	if r.IntN(8) == 0 {
		p.dst = netip.AddrPortFrom(p.dst.Addr(), uint16(r.Uint32()))
	}
	p.flags = pick(r, uint8(flagSYN), flagACK, flagACK, flagSYN|flagACK, flagFIN|flagACK, flagRST, uint8(r.Uint32()))
	p.payload = "odd"[:r.IntN(3)] + strings.Repeat("even", r.IntN(40))
	p.zeroChecksum = r.IntN(6) == 0
	p.options = pick(r, 0, 0, 0, 1, 3, 10)
	for range pick(r, 0, 0, 1, 2, 8, 9) {
		e := extension{kind: pick(r, uint8(hopByHop), destinationOptions, routing), words: pick(r, 0, 0, 1, 5, 30)}
		if r.IntN(30) == 0 {
			e.segmentsLeft = 1
		}
		p.extensions = append(p.extensions, e)
	}
	if r.IntN(6) == 0 {
		first, later := p.part(0, 0), p
		first.fragment.more = true
		later.fragment = &fragmentPart{id: 77, offset: r.IntN(10), more: r.IntN(2) == 0}
		p = pick(r, first, later)
	}
	return p
}

func pick[T any](r *rand.Rand, list ...T) T { return list[r.IntN(len(list))] }

func (o outcome) toHost() bool { return bytes.Equal(o.in[:6], make([]byte, 6)) }

// mustEcho reports whether the packet is an echo request to a service, and of a kind that is answered.
func (n *node) mustEcho(o outcome, seen view) bool {
	header, from := 20, seen.src.Addr()
	if seen.v6 {
		header = 40
	}
	if !seen.echo || seen.first || seen.later || seen.l4 != seen.l3+header || from.IsMulticast() || from.IsUnspecified() ||
		from.Is4() && (from.As4()[0] == 0 || from.As4()[0] >= 224) {
		return false
	}
	service := slices.ContainsFunc(n.worlds, func(w *world) bool {
		return slices.Contains([]netip.Addr{w.service.Addr(), w.other.Addr()}, seen.dst.Addr())
	})
	return service && (o.hook.Program == "from_pod" || o.hook.Program == "from_uplink" && o.toHost())
}

func (n *node) wrongEcho(o outcome, seen view) string {
	switch {
	case !n.mustEcho(o, seen):
		return "no echo request to a service, and answered"
	case o.counted["icmp_echo"] == 0 || o.action != actionRedirect:
		return "an echo request to a service, and not answered"
	}
	want, hops, check := bytes.Clone(o.in), seen.l3+8, seen.l3+10
	want[seen.l4] = 0
	if seen.v6 {
		hops, check = seen.l3+7, 0
		want[seen.l4] = 129
	}
	if o.hook.Point != objects.AttachTun {
		copy(want, o.in[6:12])
		copy(want[6:], o.in[:6])
	}
	ends := seen.addresses(want)
	copy(ends, slices.Concat(ends[len(ends)/2:], ends[:len(ends)/2]))
	want[hops] = 64
	residue := func(b []byte) [2]uint16 { // of sums that include their checksum
		if seen.v6 {
			return [2]uint16{sum(seen.addresses(b), b[seen.l4:]) % 0xffff}
		}
		return [2]uint16{sum(b[seen.l4:]) % 0xffff, sum(b[seen.l3:seen.l3+20]) % 0xffff}
	}
	if residue(o.in) != residue(o.out) {
		return "a checksum of the answer is wrong"
	}
	for _, at := range []int{check, seen.l4 + 2} {
		if at != 0 {
			copy(want[at:at+2], o.out[at:at+2])
		}
	}
	if !bytes.Equal(o.out, want) {
		return "the answer is not the request, sent back"
	}
	return ""
}
