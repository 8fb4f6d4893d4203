// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net/netip"
	"testing"

	"mustang/internal/lb"
)

// TestOwnDevice is the table of decisions where programs sit on the pods' own devices.
func TestOwnDevice(t *testing.T) {
	runCases(t, podSide, []translateCase{
		{"there and back on one segment", 0, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.backend)
			p := w.first(w.client, w.service)
			w.check(t, fromOwn, p, wants{verdictNext, p.toMAC(w.client, w.backend, "0a"), once("new_connection", "forward", "l2_delivered")})
			p = w.next(w.client, w.backend)
			w.check(t, toOwn, p, wants{verdictNext, nil, once("passed")})
			p = w.next(w.backend, w.client)
			w.check(t, fromOwn, p, wants{verdictNext, p.toMAC(w.service, w.client, "0c"), once("reverse", "l2_delivered")})
			p = w.next(w.service, w.client)
			w.check(t, toOwn, p, wants{verdictNext, nil, once("passed")})
		}},
		{"to another segment", 0, func(t *testing.T, w *world) {
			w.endpoint(t, pod{1, podSide, "0a", "x"}, w.backend.Addr())
			w.serve(t, w.service, w.backend)
			p := w.first(w.client, w.service)
			w.check(t, fromOwn, p, wants{verdictNext, p.toMAC(w.client, w.backend, "0e"), once("new_connection", "forward", "passed")})
		}},
		{"to a pod with a host side", 0, func(t *testing.T, w *world) {
			w.endpoint(t, pod{1, hostSide, "0a", "s"}, w.backend.Addr())
			w.serve(t, w.service, w.backend)
			p := w.first(w.client, w.service)
			w.check(t, fromOwn, p, wants{verdictNext, p.toMAC(w.client, w.backend, "0e"), once("new_connection", "forward", "passed")})
		}},
		{"from a pod with a host side", 0, func(t *testing.T, w *world) {
			w.endpoint(t, pod{2, hostSide, "0c", "s"}, w.client.Addr())
			w.serve(t, w.service, w.backend)
			p := w.first(w.client, w.service)
			w.check(t, fromHost, p, wants{verdictNext, p.toMAC(w.client, w.backend, "0e"), once("new_connection", "forward", "passed")})
			// The answer is left to the program that the client's pod has.
			p = w.next(w.backend, w.client)
			w.check(t, fromOwn, p, wants{verdictNext, nil, once("passed")})
			w.check(t, toHost, p, wants{verdictNext, p.toMAC(w.service, w.client, "0e"), once("reverse", "passed")})
		}},
		{"back from another node", 0, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.remote)
			w.send(t, fromOwn, w.first(w.client, w.service))
			p := w.next(w.remote, w.client)
			w.check(t, toOwn, p, wants{verdictNext, p.toMAC(w.service, w.client, "0e"), once("reverse", "passed")})
		}},
		{"straight to a pod", 0, func(t *testing.T, w *world) {
			w.check(t, fromOwn, w.first(w.client, w.backend), wants{verdictNext, nil, once("passed")})
		}},
		{"hairpin", 0, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.backend)
			self := netip.AddrPortFrom(w.backend.Addr(), 40000)
			seen := netip.AddrPortFrom(w.service.Addr(), 40000)
			p := w.first(self, w.service)
			p.ethSrc = "0a"
			w.check(t, fromOwn, p, wants{verdictRedirect, p.toMAC(seen, w.backend, "0a"), once("new_connection", "forward", "hairpin")})
			p = w.next(w.backend, seen)
			p.ethSrc = "0a"
			w.check(t, fromOwn, p, wants{verdictRedirect, p.toMAC(w.service, self, "0a"), once("reverse", "hairpin")})
		}},
		{"error back on one segment", lb.UDP, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.backend)
			w.send(t, fromOwn, w.first(w.client, w.service))
			p := w.icmp(w.backend.Addr(), w.client.Addr(), 3, 1).about(w.next(w.client, w.backend))
			out := p.about(w.next(w.client, w.service)).toMAC(netip.AddrPortFrom(w.service.Addr(), 0), p.dst, "0c")
			w.check(t, fromOwn, p, wants{verdictNext, out, once("icmp_error", "l2_delivered")})
		}},
	})
}
