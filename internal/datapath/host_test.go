// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net/netip"
	"testing"

	"mustang/internal/lb"
)

// TestNetkit is the table of decisions where the programs are those of netkit devices.
func TestNetkit(t *testing.T) {
	runCases(t, netkitSide, []translateCase{
		{"there and back", 0, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.backend)
			p := w.first(w.client, w.service)
			w.check(t, fromNetkit, p, wants{verdictRedirect, p.became(w.client, w.backend, "0a"), once("new_connection", "forward", "redirect_device")})
			p = w.next(w.backend, w.client)
			w.check(t, fromNetkit, p, wants{verdictRedirect, p.became(w.service, w.client, "0c"), once("reverse", "redirect_device")})
		}},
		{"another node", 0, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.remote)
			p := w.first(w.client, w.service)
			w.check(t, fromNetkit, p, wants{verdictNext, p.became(w.client, w.remote, ""), once("new_connection", "forward", "passed")})
			p = w.next(w.remote, w.client)
			w.check(t, toNetkit, p, wants{verdictNext, p.became(w.service, w.client, ""), once("reverse", "passed")})
		}},
		{"straight", 0, func(t *testing.T, w *world) {
			p := w.first(w.client, w.backend)
			w.check(t, fromNetkit, p, wants{verdictRedirect, p.became(w.client, w.backend, "0a"), once("redirect_device")})
		}},
		{"hairpin", 0, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.backend)
			self := netip.AddrPortFrom(w.backend.Addr(), 40000)
			seen := netip.AddrPortFrom(w.service.Addr(), 40000)
			p := w.first(self, w.service)
			w.check(t, fromNetkit, p, wants{verdictRedirect, p.became(seen, w.backend, "0a"), once("new_connection", "forward", "redirect_device")})
			p = w.next(w.backend, seen)
			w.check(t, fromNetkit, p, wants{verdictRedirect, p.became(w.service, self, "0a"), once("reverse", "redirect_device")})
		}},
		{"to a pod behind TUN", 0, func(t *testing.T, w *world) {
			w.endpoint(t, pod{1, tunSide, "", ""}, w.backend.Addr())
			p := w.first(w.client, w.backend)
			w.check(t, fromNetkit, p, wants{verdictRedirect, nil, once("redirect_device")})
		}},
	})
}

// TestMixed is the table of decisions about pods of different kinds with a host side, or with none.
func TestMixed(t *testing.T) {
	runCases(t, hostSide, []translateCase{
		{"to a pod behind TAP", 0, func(t *testing.T, w *world) {
			w.endpoint(t, pod{1, tapPod, "0a", ""}, w.backend.Addr())
			w.serve(t, w.service, w.backend)
			p := w.first(w.client, w.service)
			w.check(t, fromHost, p, wants{verdictRedirect, p.became(w.client, w.backend, "0a"), once("new_connection", "forward", "redirect_device")})
			p = w.next(w.backend, w.client)
			w.check(t, fromHost, p, wants{verdictRedirect, p.became(w.service, w.client, "0c"), once("reverse", "redirect_peer")})
		}},
		{"straight to a pod behind TAP", 0, func(t *testing.T, w *world) {
			w.endpoint(t, pod{1, tapPod, "0a", ""}, w.backend.Addr())
			p := w.first(w.client, w.backend)
			w.check(t, fromHost, p, wants{verdictRedirect, p.became(w.client, w.backend, "0a"), once("redirect_device")})
		}},
		{"to a pod behind TUN", 0, func(t *testing.T, w *world) {
			w.endpoint(t, pod{1, tunSide, "", ""}, w.backend.Addr())
			w.serve(t, w.service, w.backend)
			p := w.first(w.client, w.service)
			w.check(t, fromHost, p, wants{verdictRedirect, p.became(w.client, w.backend, ""), once("new_connection", "forward", "redirect_device")})
		}},
		{"answer to a pod without a host side", 0, func(t *testing.T, w *world) {
			w.endpoint(t, pod{2, podSide, "0c", "s"}, w.client.Addr())
			w.serve(t, w.service, w.backend)
			w.send(t, fromOwn, w.first(w.client, w.service))
			p := w.next(w.backend, w.client)
			w.check(t, fromHost, p, wants{verdictNext, nil, once("passed")})
			w.check(t, toOwn, p, wants{verdictNext, p.became(w.service, w.client, ""), once("reverse", "passed")})
		}},
		{"error to a pod without a host side", lb.UDP, func(t *testing.T, w *world) {
			w.endpoint(t, pod{2, podSide, "0c", "s"}, w.client.Addr())
			w.serve(t, w.service, w.backend)
			w.send(t, fromOwn, w.first(w.client, w.service))
			p := w.icmp(w.backend.Addr(), w.client.Addr(), 3, 1).about(w.next(w.client, w.backend))
			out := p.about(w.next(w.client, w.service)).became(netip.AddrPortFrom(w.service.Addr(), 0), p.dst, "")
			w.check(t, fromHost, p, wants{verdictNext, nil, once("passed")})
			w.check(t, toOwn, p, wants{verdictNext, out, once("icmp_error", "passed")})
		}},
		{"pod that becomes one after its connection", 0, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.remote)
			w.send(t, fromHost, w.first(w.client, w.service))
			w.endpoint(t, pod{3, hostSide, "0e", ""}, w.remote.Addr())
			p := w.next(w.client, w.service)
			w.check(t, fromHost, p, wants{verdictNext, p.became(w.client, w.remote, ""), once("forward", "passed")})
			if w.proto == protoTCP {
				p = w.first(w.client, w.service)
				w.check(t, fromHost, p, wants{verdictRedirect, p.became(w.client, w.remote, "0e"), once("kept_connection", "forward", "redirect_peer")})
			}
		}},
	})
}
