// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net/netip"
	"testing"

	"mustang/internal/lb"
)

// bare gives the world addresses for packets without an Ethernet header. The kernel takes what it gets for a test for a
// frame, and the protocol from the bytes where that would have it: the first two of an IPv4 source, the fifth and sixth
// of an IPv6 source.
func (w *world) bare() {
	addresses := []string{"8.0.10.11:40000", "8.0.10.10:8080", "8.0.1.2:8080", "8.0.8.8:53"}
	if w.v6 {
		addresses = []string{"[fd00:10:86dd::b]:40000", "[fd00:10:86dd::a]:8080", "[fd00:99:86dd::2]:8080", "[2001:db8:86dd::8]:53"}
	}
	for i, ap := range []*netip.AddrPort{&w.client, &w.backend, &w.remote, &w.outsider} {
		*ap = netip.MustParseAddrPort(addresses[i])
	}
}

// without is p without an Ethernet header, and with enough behind for the kernel to take one and an IP header for there.
func (p packet) without() packet {
	p.bare = true
	p.payload += ", and more of it"
	return p
}

// into is p with other ends and, where a pair is given, with an Ethernet header for the pod with that MAC.
func (p packet) into(src, dst netip.AddrPort, pair string) *packet {
	p.src, p.dst = src, dst
	if pair != "" {
		p.bare, p.ethDst, p.ethSrc = false, pair, "ee"
	}
	return &p
}

// TestBare is the table of decisions on links without Ethernet.
func TestBare(t *testing.T) {
	cases := append(bareCases(), bareMixedCases()...)
	for i, c := range cases {
		cases[i].run = func(t *testing.T, w *world) {
			inside := *w
			inside.bare()
			inside.reset(t, tunSide)
			c.run(t, &inside)
		}
	}
	runCases(t, tunSide, cases)
}

func bareCases() []translateCase {
	return []translateCase{
		{"there and back", 0, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.backend)
			p := w.first(w.client, w.service).without()
			w.check(t, fromTun, p, wants{verdictRedirect, p.into(w.client, w.backend, ""), once("new_connection", "forward", "redirect_device")})
			p = w.next(w.client, w.service).without()
			w.check(t, fromTun, p, wants{verdictRedirect, p.into(w.client, w.backend, ""), once("forward", "redirect_device")})
			p = w.next(w.backend, w.client).without()
			w.check(t, fromTun, p, wants{verdictRedirect, p.into(w.service, w.client, ""), once("reverse", "redirect_device")})
		}},
		{"another node", 0, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.remote)
			p := w.first(w.client, w.service).without()
			w.check(t, fromTun, p, wants{verdictNext, p.into(w.client, w.remote, ""), once("new_connection", "forward", "passed")})
			p = w.next(w.remote, w.client).without()
			w.check(t, toTun, p, wants{verdictNext, p.into(w.service, w.client, ""), once("reverse", "passed")})
		}},
		{"straight", 0, func(t *testing.T, w *world) {
			p := w.first(w.client, w.backend).without()
			w.check(t, fromTun, p, wants{verdictRedirect, nil, once("redirect_device")})
			p = w.first(w.client, w.outsider).without()
			w.check(t, fromTun, p, wants{verdictNext, nil, once("passed")})
			w.check(t, toTun, p, wants{verdictNext, nil, once("passed")})
		}},
		{"hairpin", 0, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.backend)
			self := netip.AddrPortFrom(w.backend.Addr(), 40000)
			seen := netip.AddrPortFrom(w.service.Addr(), 40000)
			p := w.first(self, w.service).without()
			w.check(t, fromTun, p, wants{verdictRedirect, p.into(seen, w.backend, ""), once("new_connection", "forward", "redirect_device")})
			p = w.next(w.backend, seen).without()
			w.check(t, fromTun, p, wants{verdictRedirect, p.into(w.service, self, ""), once("reverse", "redirect_device")})
		}},
		{"fragments", 0, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.backend)
			first, later := w.parts(w.first(w.client, w.service).without())
			w.check(t, fromTun, first, wants{verdictRedirect, first.into(w.client, w.backend, ""), once("new_connection", "forward", "redirect_device")})
			w.check(t, fromTun, later, wants{verdictRedirect, later.into(w.client, w.backend, ""), once("forward", "redirect_device")})
		}},
		{"error from a router", lb.UDP, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.backend)
			w.send(t, fromTun, w.first(w.client, w.service).without())
			p := w.icmp(w.outsider.Addr(), w.client.Addr(), 3, 2).about(w.next(w.client, w.backend)).without()
			out := p.about(w.next(w.client, w.service))
			w.check(t, fromTun, p, wants{verdictRedirect, &out, once("icmp_error", "redirect_device")})
		}},
		{"no IP", 0, func(t *testing.T, w *world) {
			p := w.first(w.service, w.backend).without() // its source makes the kernel see another protocol
			w.check(t, fromTun, p, wants{verdictNext, nil, once("passed")})
		}},
		{"wrong version", 0, func(t *testing.T, w *world) {
			p := w.first(w.client, w.backend).without()
			p.mangle = func(ip []byte) { ip[0] = 0x55 }
			w.check(t, fromTun, p, wants{verdictDrop, nil, once("drop_malformed")})
		}},
	}
}

// bareMixedCases have a pod with Ethernet at one end.
func bareMixedCases() []translateCase {
	return []translateCase{
		{"to a pod with Ethernet", 0, func(t *testing.T, w *world) {
			w.endpoint(t, pod{1, hostSide, "0a", ""}, w.backend.Addr())
			w.serve(t, w.service, w.backend)
			p := w.first(w.client, w.service).without()
			w.check(t, fromTun, p, wants{verdictRedirect, p.into(w.client, w.backend, "0a"), once("new_connection", "forward", "redirect_peer")})
			p = w.next(w.backend, w.client)
			w.check(t, fromHost, p, wants{verdictRedirect, p.into(w.service, w.client, ""), once("reverse", "redirect_device")})
		}},
		{"to a pod behind TAP", 0, func(t *testing.T, w *world) {
			w.endpoint(t, pod{1, tapPod, "0a", ""}, w.backend.Addr())
			w.serve(t, w.service, w.backend)
			p := w.first(w.client, w.service).without()
			w.check(t, fromTun, p, wants{verdictRedirect, p.into(w.client, w.backend, "0a"), once("new_connection", "forward", "redirect_device")})
		}},
		{"straight to a pod with Ethernet", 0, func(t *testing.T, w *world) {
			w.endpoint(t, pod{1, hostSide, "0a", ""}, w.backend.Addr())
			p := w.first(w.client, w.backend).without()
			w.check(t, fromTun, p, wants{verdictRedirect, p.into(w.client, w.backend, "0a"), once("redirect_peer")})
		}},
		{"to a pod without a host side", 0, func(t *testing.T, w *world) {
			w.endpoint(t, pod{1, podSide, "0a", "s"}, w.backend.Addr())
			w.serve(t, w.service, w.backend)
			p := w.first(w.client, w.service).without()
			w.check(t, fromTun, p, wants{verdictNext, p.into(w.client, w.backend, ""), once("new_connection", "forward", "passed")})
			p = w.next(w.backend, w.client)
			w.check(t, fromOwn, p, wants{verdictNext, nil, once("passed")})
			p = p.without()
			w.check(t, toTun, p, wants{verdictNext, p.into(w.service, w.client, ""), once("reverse", "passed")})
		}},
	}
}
