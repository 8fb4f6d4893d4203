// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net/netip"
	"testing"

	"mustang/internal/datapath/objects"
	"mustang/internal/service"
)

var (
	fromUplink = objects.Hook{Point: objects.AttachUplink, Program: "from_uplink"}
	toUplink   = objects.Hook{Point: objects.AttachUplink, Program: "to_uplink"}
)

// arriving returns p as it comes in by the device of test runs, whose MAC address is all zeros.
func (p packet) arriving(from string) packet {
	p.ethDst, p.ethSrc = "00", from
	return p
}

// answered returns p as a reply that leaves by that device.
func (p packet) answered(src, dst netip.AddrPort, to string) *packet {
	p.src, p.dst, p.ethDst, p.ethSrc = src, dst, to, "00"
	return &p
}

// TestFromUplink is the table of decisions about packets between clients outside and pods.
func TestFromUplink(t *testing.T) {
	runCases(t, objects.AttachHost, append(outsideCases(), untouchedCases()...))
}

func outsideCases() []translateCase {
	return []translateCase{
		{"there and back", 0, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.backend)
			p := w.first(w.outsider, w.service).arriving("aa")
			w.gets(t, fromUplink, p, "redirect outsider>backend 0a: new_connection forward redirect_peer")
			p = w.next(w.backend, w.outsider)
			w.check(t, fromHost, p, wants{actionRedirect, p.answered(w.service, w.outsider, "aa"), once("reverse", "redirect_device")})
			p = w.next(w.outsider, w.service).arriving("aa")
			w.gets(t, fromUplink, p, "redirect outsider>backend 0a: forward redirect_peer")
		}},
		{"from another router", 0, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.backend)
			w.send(t, fromUplink, w.first(w.outsider, w.service).arriving("aa"))
			w.send(t, fromUplink, w.next(w.outsider, w.service).arriving("bb"))
			p := w.next(w.backend, w.outsider)
			w.check(t, fromHost, p, wants{actionRedirect, p.answered(w.service, w.outsider, "bb"), once("reverse", "redirect_device")})
		}},
		{"to a pod without a host side, elsewhere", 0, func(t *testing.T, w *world) {
			w.endpoint(t, pod{1, objects.AttachPod, "0a", "s"}, w.backend.Addr())
			w.serve(t, w.service, w.backend)
			p := w.first(w.outsider, w.service).arriving("aa")
			w.gets(t, fromUplink, p, "next outsider>backend @00: new_connection forward passed")
			p = w.next(w.backend, w.outsider)
			w.gets(t, fromOwn, p, "next: passed")
			w.gets(t, toUplink, p, "next service>outsider: reverse passed")
		}},
		{"to a pod on the uplink", 0, func(t *testing.T, w *world) {
			w.endpoint(t, pod{1, objects.AttachPod, "0a", "\x01"}, w.backend.Addr()) // the index of the device of test runs
			w.serve(t, w.service, w.backend)
			p := w.first(w.outsider, w.service).arriving("aa")
			w.gets(t, fromUplink, p, "next outsider>backend @0a: new_connection forward l2_delivered")
			w.gets(t, fromOwn, w.next(w.backend, w.outsider), "next service>outsider @aa: reverse l2_delivered")
		}},
		{"error about an answer", service.UDP, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.backend)
			w.send(t, fromUplink, w.first(w.outsider, w.service).arriving("aa"))
			p := w.icmp(w.other.Addr(), w.service.Addr(), 3, 1).about(w.next(w.service, w.outsider)).arriving("aa")
			out := p.about(w.next(w.backend, w.outsider)).became(p.src, netip.AddrPortFrom(w.backend.Addr(), 0), "0a")
			w.check(t, fromUplink, p, wants{actionRedirect, out, once("icmp_error", "redirect_peer")})
		}},
	}
}

// untouchedCases are packets that must pass unchanged.
func untouchedCases() []translateCase {
	untouched := func(t *testing.T, w *world, p packet) {
		t.Helper()
		w.gets(t, fromUplink, p, "next: passed")
	}
	return []translateCase{
		{"to the host", 0, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.backend)
			other := netip.AddrPortFrom(w.service.Addr(), 22)
			untouched(t, w, w.first(w.outsider, other).arriving("aa"))
			untouched(t, w, w.next(w.outsider, other).arriving("aa"))
		}},
		{"straight to a pod", 0, func(t *testing.T, w *world) {
			untouched(t, w, w.first(w.outsider, w.backend).arriving("aa"))
			untouched(t, w, w.next(w.outsider, w.backend).arriving("aa"))
		}},
		{"to another host", 0, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.backend)
			untouched(t, w, w.first(w.outsider, w.service))
		}},
		{"as if from a pod", 0, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.backend)
			untouched(t, w, w.first(w.client, w.service).arriving("aa"))
			w.send(t, fromHost, w.first(w.client, w.service))
			untouched(t, w, w.next(w.client, w.service).arriving("aa"))
		}},
		{"answer to a pod", 0, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.remote)
			w.send(t, fromHost, w.first(w.client, w.service))
			untouched(t, w, w.next(w.remote, w.client).arriving("aa"))
		}},
		{"malformed", 0, func(t *testing.T, w *world) {
			p := w.first(w.outsider, w.service).arriving("aa")
			p.mangle = func(ip []byte) { ip[0] = 0xf5 }
			untouched(t, w, p)
		}},
		{"not IP", 0, func(t *testing.T, w *world) {
			p := w.first(w.outsider, w.service).arriving("aa")
			p.ethType = 0x0806
			untouched(t, w, p)
		}},
		{"out, of no connection", 0, func(t *testing.T, w *world) {
			w.gets(t, toUplink, w.next(w.service, w.outsider), "next: passed")
			w.serve(t, w.service, w.remote)
			w.send(t, fromHost, w.first(w.client, w.service))
			w.gets(t, toUplink, w.next(w.remote, w.client), "next: passed")
		}},
	}
}
