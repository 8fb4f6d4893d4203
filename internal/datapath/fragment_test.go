// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"strings"
	"testing"
)

// TestFragments is the table of packets in parts.
func TestFragments(t *testing.T) {
	runCases(t, hostSide, []translateCase{
		{"in order, there and back", 0, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.backend)
			first, later := w.parts(w.first(w.client, w.service))
			w.check(t, fromHost, first, wants{verdictRedirect, first.became(w.client, w.backend, "0a"),
				once("new_connection", "forward", "redirect_peer")})
			w.check(t, fromHost, later, wants{verdictRedirect, later.became(w.client, w.backend, "0a"), once("forward", "redirect_peer")})
			first, later = w.parts(w.next(w.backend, w.client))
			w.check(t, fromHost, first, wants{verdictRedirect, first.became(w.service, w.client, "0c"), once("reverse", "redirect_peer")})
			w.check(t, fromHost, later, wants{verdictRedirect, later.became(w.service, w.client, "0c"), once("reverse", "redirect_peer")})
		}},
		{"back from another node", 0, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.remote)
			w.send(t, fromHost, w.first(w.client, w.service))
			first, later := w.parts(w.next(w.remote, w.client))
			w.check(t, toHost, first, wants{verdictNext, first.became(w.service, w.client, ""), once("reverse", "passed")})
			w.check(t, toHost, later, wants{verdictNext, later.became(w.service, w.client, ""), once("reverse", "passed")})
		}},
		{"straight to a pod", 0, func(t *testing.T, w *world) {
			first, later := w.parts(w.first(w.client, w.backend))
			w.check(t, fromHost, first, wants{verdictRedirect, first.became(w.client, w.backend, "0a"), once("redirect_peer")})
			w.check(t, fromHost, later, wants{verdictRedirect, later.became(w.client, w.backend, "0a"), once("redirect_peer")})
		}},
		{"without the first", 0, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.backend)
			_, later := w.parts(w.first(w.client, w.service))
			w.check(t, fromHost, later, wants{verdictNext, nil, once("unknown_fragment", "passed")})
			w.check(t, toHost, later, wants{verdictNext, nil, once("unknown_fragment", "passed")})
		}},
		{"of another packet", 0, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.backend)
			first, later := w.parts(w.first(w.client, w.service))
			w.send(t, fromHost, first)
			later.fragment.id++
			w.check(t, fromHost, later, wants{verdictNext, nil, once("unknown_fragment", "passed")})
		}},
		{"ping", 0, func(t *testing.T, w *world) {
			p := w.icmp(w.client.Addr(), w.backend.Addr(), 8, 128)
			p.payload = strings.Repeat("ping", 10)
			for _, part := range []packet{p.part(0, 24), p.part(24, 40)} {
				w.check(t, fromHost, part, wants{verdictRedirect, part.became(p.src, p.dst, "0a"), once("redirect_peer")})
			}
		}},
	})
}

// parts splits a packet in two.
func (w *world) parts(p packet) (first, later packet) {
	p.payload = strings.Repeat("fragment", 10)
	return p.part(0, 32), p.part(32, 80)
}

// part is the fragment with payload bytes from..to.
func (p packet) part(from, to int) packet {
	header := map[uint8]int{protoTCP: 20, protoUDP: 8, protoICMP: 8, protoICMPv6: 8}[p.proto]
	f := &fragmentPart{id: 77, whole: p.payload, more: to < len(p.payload)}
	if from > 0 {
		f.offset = (from + header + 7) / 8
	}
	p.payload, p.fragment = p.payload[from:to], f
	return p
}
