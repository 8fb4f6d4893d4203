// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net/netip"
	"testing"

	"mustang/internal/lb"
)

// TestErrors is the table of ICMP errors about packets that were translated.
func TestErrors(t *testing.T) {
	done := once("icmp_error", "redirect_peer")
	runCases(t, hostSide, []translateCase{
		{"from a router, for the client", 0, func(t *testing.T, w *world) {
			w.open(t, w.backend)
			for _, kinds := range [][2]uint8{{3, 1}, {3, 2}, {11, 3}, {12, 4}} {
				p := w.icmp(w.outsider.Addr(), w.client.Addr(), kinds[0], kinds[1]).about(w.next(w.client, w.backend))
				out := p.about(w.next(w.client, w.service)).became(p.src, p.dst, "0c")
				w.check(t, fromHost, p, wants{verdictRedirect, out, done})
			}
		}},
		{"from a router, into the client's pod", 0, func(t *testing.T, w *world) {
			w.open(t, w.remote)
			p := w.icmp(w.outsider.Addr(), w.client.Addr(), 3, 2).about(w.next(w.client, w.remote))
			out := p.about(w.next(w.client, w.service))
			w.check(t, toHost, p, wants{verdictNext, &out, once("icmp_error", "passed")})
		}},
		{"from the backend itself", 0, func(t *testing.T, w *world) {
			w.open(t, w.backend)
			p := w.icmp(w.backend.Addr(), w.client.Addr(), 3, 1).about(w.next(w.client, w.backend))
			out := p.about(w.next(w.client, w.service)).became(netip.AddrPortFrom(w.service.Addr(), 0), p.dst, "0c")
			w.check(t, fromHost, p, wants{verdictRedirect, out, done})
		}},
		{"from the client, for the backend", 0, func(t *testing.T, w *world) {
			w.open(t, w.backend)
			p := w.icmp(w.client.Addr(), w.service.Addr(), 3, 1).about(w.next(w.service, w.client))
			out := p.about(w.next(w.backend, w.client)).became(p.src, netip.AddrPortFrom(w.backend.Addr(), 0), "0a")
			w.check(t, fromHost, p, wants{verdictRedirect, out, done})
		}},
		{"hairpin", 0, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.backend)
			self := netip.AddrPortFrom(w.backend.Addr(), 40000)
			seen := netip.AddrPortFrom(w.service.Addr(), 40000)
			w.send(t, fromHost, w.first(self, w.service))
			p := w.icmp(w.backend.Addr(), w.service.Addr(), 3, 1).about(w.next(seen, w.backend))
			out := p.about(w.next(self, w.service)).became(netip.AddrPortFrom(w.service.Addr(), 0), netip.AddrPortFrom(self.Addr(), 0), "0a")
			w.check(t, fromHost, p, wants{verdictRedirect, out, done})
		}},
		{"quoting eight bytes only", 0, func(t *testing.T, w *world) {
			w.open(t, w.backend)
			short := func(p packet) packet { p.quoteBytes = 8; return p }
			p := short(w.icmp(w.outsider.Addr(), w.client.Addr(), 3, 2).about(w.next(w.client, w.backend)))
			out := short(p.about(w.next(w.client, w.service))).became(p.src, p.dst, "0c")
			w.check(t, fromHost, p, wants{verdictRedirect, out, done})
		}},
		{"quoting a datagram without a checksum", lb.UDP, func(t *testing.T, w *world) {
			w.open(t, w.backend)
			bare := func(p packet) packet { p.zeroChecksum = true; return p }
			p := w.icmp(w.outsider.Addr(), w.client.Addr(), 3, 2).about(bare(w.next(w.client, w.backend)))
			out := p.about(bare(w.next(w.client, w.service))).became(p.src, p.dst, "0c")
			w.check(t, fromHost, p, wants{verdictRedirect, out, done})
		}},
		{"about no connection of ours", 0, func(t *testing.T, w *world) {
			w.open(t, w.backend)
			p := w.icmp(w.outsider.Addr(), w.client.Addr(), 3, 1).about(w.next(w.client, w.outsider))
			w.check(t, fromHost, p, wants{verdictRedirect, p.became(p.src, p.dst, "0c"), once("redirect_peer")})
		}},
		{"for another than the quoted sender", 0, func(t *testing.T, w *world) {
			w.open(t, w.backend)
			p := w.icmp(w.outsider.Addr(), w.backend.Addr(), 3, 1).about(w.next(w.client, w.backend))
			w.check(t, fromHost, p, wants{verdictRedirect, p.became(p.src, p.dst, "0a"), once("redirect_peer")})
		}},
		{"quoting too little", 0, func(t *testing.T, w *world) {
			w.open(t, w.backend)
			p := w.icmp(w.outsider.Addr(), w.client.Addr(), 3, 1).about(w.next(w.client, w.backend))
			p.quoteBytes = 4
			w.check(t, fromHost, p, wants{verdictRedirect, p.became(p.src, p.dst, "0c"), once("redirect_peer")})
		}},
	})
}

// open makes the connection of client and service.
func (w *world) open(t *testing.T, backend netip.AddrPort) {
	t.Helper()
	w.serve(t, w.service, backend)
	w.send(t, fromHost, w.first(w.client, w.service))
}

// about is an ICMP error with another quote.
func (p packet) about(quote packet) packet {
	p.quote = &quote
	return p
}
