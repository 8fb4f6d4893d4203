// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net/netip"
	"testing"

	"mustang/internal/datapath/objects"
	"mustang/internal/service"
)

// TestOwnDevice is the table of decisions of programs on the pod's own device.
func TestOwnDevice(t *testing.T) {
	runCases(t, objects.AttachPod, []translateCase{
		{"there and back on one segment", 0, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.backend)
			p := w.first(w.client, w.service)
			w.check(t, fromOwn, p, wants{actionNext, p.toMAC(w.client, w.backend, "0a"), once("new_connection", "forward", "l2_delivered")})
			p = w.next(w.client, w.backend)
			w.check(t, toOwn, p, wants{actionNext, nil, once("passed")})
			p = w.next(w.backend, w.client)
			w.check(t, fromOwn, p, wants{actionNext, p.toMAC(w.service, w.client, "0c"), once("reverse", "l2_delivered")})
			p = w.next(w.service, w.client)
			w.check(t, toOwn, p, wants{actionNext, nil, once("passed")})
		}},
		{"to another segment", 0, func(t *testing.T, w *world) {
			w.endpoint(t, pod{1, objects.AttachPod, "0a", "x"}, w.backend.Addr())
			w.serve(t, w.service, w.backend)
			p := w.first(w.client, w.service)
			w.check(t, fromOwn, p, wants{actionNext, p.toMAC(w.client, w.backend, "0e"), once("new_connection", "forward", "passed")})
		}},
		{"to a pod with a host side", 0, func(t *testing.T, w *world) {
			w.endpoint(t, pod{1, objects.AttachHost, "0a", "s"}, w.backend.Addr())
			w.serve(t, w.service, w.backend)
			p := w.first(w.client, w.service)
			w.check(t, fromOwn, p, wants{actionNext, p.toMAC(w.client, w.backend, "0e"), once("new_connection", "forward", "passed")})
		}},
		{"from a pod with a host side", 0, func(t *testing.T, w *world) {
			w.endpoint(t, pod{2, objects.AttachHost, "0c", "s"}, w.client.Addr())
			w.serve(t, w.service, w.backend)
			p := w.first(w.client, w.service)
			w.check(t, fromHost, p, wants{actionNext, p.toMAC(w.client, w.backend, "0e"), once("new_connection", "forward", "passed")})
			// The answer is left to the program that the client's pod has.
			p = w.next(w.backend, w.client)
			w.check(t, fromOwn, p, wants{actionNext, nil, once("passed")})
			w.check(t, toHost, p, wants{actionNext, p.toMAC(w.service, w.client, "0e"), once("reverse", "passed")})
		}},
		{"back from another node", 0, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.remote)
			w.send(t, fromOwn, w.first(w.client, w.service))
			p := w.next(w.remote, w.client)
			w.check(t, toOwn, p, wants{actionNext, p.toMAC(w.service, w.client, "0e"), once("reverse", "passed")})
		}},
		{"straight to a pod", 0, func(t *testing.T, w *world) {
			w.check(t, fromOwn, w.first(w.client, w.backend), wants{actionNext, nil, once("passed")})
		}},
		{"hairpin", 0, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.backend)
			self := netip.AddrPortFrom(w.backend.Addr(), 40000)
			seen := netip.AddrPortFrom(w.service.Addr(), 40000)
			p := w.first(self, w.service)
			p.ethSrc = "0a"
			w.check(t, fromOwn, p, wants{actionRedirect, p.toMAC(seen, w.backend, "0a"), once("new_connection", "forward", "hairpin")})
			p = w.next(w.backend, seen)
			p.ethSrc = "0a"
			w.check(t, fromOwn, p, wants{actionRedirect, p.toMAC(w.service, self, "0a"), once("reverse", "hairpin")})
		}},
		{"error back on one segment", service.UDP, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.backend)
			w.send(t, fromOwn, w.first(w.client, w.service))
			p := w.icmp(w.backend.Addr(), w.client.Addr(), 3, 1).about(w.next(w.client, w.backend))
			out := p.about(w.next(w.client, w.service)).toMAC(netip.AddrPortFrom(w.service.Addr(), 0), p.dst, "0c")
			w.check(t, fromOwn, p, wants{actionNext, out, once("icmp_error", "l2_delivered")})
		}},
	})
}

// TestNetkit is the table of decisions of programs on netkit devices.
func TestNetkit(t *testing.T) {
	runCases(t, objects.AttachNetkit, []translateCase{
		{"there and back", 0, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.backend)
			p := w.first(w.client, w.service)
			w.check(t, fromNetkit, p, wants{actionRedirect, p.became(w.client, w.backend, "0a"), once("new_connection", "forward", "redirect_device")})
			p = w.next(w.backend, w.client)
			w.check(t, fromNetkit, p, wants{actionRedirect, p.became(w.service, w.client, "0c"), once("reverse", "redirect_device")})
		}},
		{"another node", 0, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.remote)
			p := w.first(w.client, w.service)
			w.check(t, fromNetkit, p, wants{actionNext, p.became(w.client, w.remote, ""), once("new_connection", "forward", "passed")})
			p = w.next(w.remote, w.client)
			w.check(t, toNetkit, p, wants{actionNext, p.became(w.service, w.client, ""), once("reverse", "passed")})
		}},
		{"straight", 0, func(t *testing.T, w *world) {
			p := w.first(w.client, w.backend)
			w.check(t, fromNetkit, p, wants{actionRedirect, p.became(w.client, w.backend, "0a"), once("redirect_device")})
		}},
		{"hairpin", 0, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.backend)
			self := netip.AddrPortFrom(w.backend.Addr(), 40000)
			seen := netip.AddrPortFrom(w.service.Addr(), 40000)
			p := w.first(self, w.service)
			w.check(t, fromNetkit, p, wants{actionRedirect, p.became(seen, w.backend, "0a"), once("new_connection", "forward", "redirect_device")})
			p = w.next(w.backend, seen)
			w.check(t, fromNetkit, p, wants{actionRedirect, p.became(w.service, self, "0a"), once("reverse", "redirect_device")})
		}},
		{"to a pod behind TUN", 0, func(t *testing.T, w *world) {
			w.endpoint(t, pod{1, objects.AttachTun, "", ""}, w.backend.Addr())
			p := w.first(w.client, w.backend)
			w.check(t, fromNetkit, p, wants{actionRedirect, nil, once("redirect_device")})
		}},
	})
}

// TestMixed is the table of decisions between pods of different attach points.
func TestMixed(t *testing.T) {
	runCases(t, objects.AttachHost, []translateCase{
		{"to a pod behind TAP", 0, func(t *testing.T, w *world) {
			w.endpoint(t, pod{1, tapPod, "0a", ""}, w.backend.Addr())
			w.serve(t, w.service, w.backend)
			p := w.first(w.client, w.service)
			w.check(t, fromHost, p, wants{actionRedirect, p.became(w.client, w.backend, "0a"), once("new_connection", "forward", "redirect_device")})
			p = w.next(w.backend, w.client)
			w.check(t, fromHost, p, wants{actionRedirect, p.became(w.service, w.client, "0c"), once("reverse", "redirect_peer")})
		}},
		{"straight to a pod behind TAP", 0, func(t *testing.T, w *world) {
			w.endpoint(t, pod{1, tapPod, "0a", ""}, w.backend.Addr())
			p := w.first(w.client, w.backend)
			w.check(t, fromHost, p, wants{actionRedirect, p.became(w.client, w.backend, "0a"), once("redirect_device")})
		}},
		{"to a pod behind TUN", 0, func(t *testing.T, w *world) {
			w.endpoint(t, pod{1, objects.AttachTun, "", ""}, w.backend.Addr())
			w.serve(t, w.service, w.backend)
			p := w.first(w.client, w.service)
			w.check(t, fromHost, p, wants{actionRedirect, p.became(w.client, w.backend, ""), once("new_connection", "forward", "redirect_device")})
		}},
		{"answer to a pod without a host side", 0, func(t *testing.T, w *world) {
			w.endpoint(t, pod{2, objects.AttachPod, "0c", "s"}, w.client.Addr())
			w.serve(t, w.service, w.backend)
			w.send(t, fromOwn, w.first(w.client, w.service))
			p := w.next(w.backend, w.client)
			w.check(t, fromHost, p, wants{actionNext, nil, once("passed")})
			w.check(t, toOwn, p, wants{actionNext, p.became(w.service, w.client, ""), once("reverse", "passed")})
		}},
		{"error to a pod without a host side", service.UDP, func(t *testing.T, w *world) {
			w.endpoint(t, pod{2, objects.AttachPod, "0c", "s"}, w.client.Addr())
			w.serve(t, w.service, w.backend)
			w.send(t, fromOwn, w.first(w.client, w.service))
			p := w.icmp(w.backend.Addr(), w.client.Addr(), 3, 1).about(w.next(w.client, w.backend))
			out := p.about(w.next(w.client, w.service)).became(netip.AddrPortFrom(w.service.Addr(), 0), p.dst, "")
			w.check(t, fromHost, p, wants{actionNext, nil, once("passed")})
			w.check(t, toOwn, p, wants{actionNext, out, once("icmp_error", "passed")})
		}},
		{"pod that becomes one after its connection", 0, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.remote)
			w.send(t, fromHost, w.first(w.client, w.service))
			w.endpoint(t, pod{3, objects.AttachHost, "0e", ""}, w.remote.Addr())
			p := w.next(w.client, w.service)
			w.check(t, fromHost, p, wants{actionNext, p.became(w.client, w.remote, ""), once("forward", "passed")})
			if w.proto == protoTCP {
				p = w.first(w.client, w.service)
				w.check(t, fromHost, p, wants{actionNext, p.became(w.client, w.remote, ""), once("kept_connection", "forward", "passed")})
			}
		}},
	})
}

// tunAddresses sets addresses for packets without an Ethernet header. BPF_PROG_TEST_RUN parses them as frames, and takes
// the protocol from where a frame has it: the first two bytes of an IPv4 source, the fifth and sixth of an IPv6 source.
func (w *world) tunAddresses() {
	addresses := []string{"8.0.10.11:40000", "8.0.10.10:8080", "8.0.1.2:8080", "8.0.8.8:53"}
	if w.v6 {
		addresses = []string{"[fd00:10:86dd::b]:40000", "[fd00:10:86dd::a]:8080", "[fd00:99:86dd::2]:8080", "[2001:db8:86dd::8]:53"}
	}
	for i, ap := range []*netip.AddrPort{&w.client, &w.backend, &w.remote, &w.outsider} {
		*ap = netip.MustParseAddrPort(addresses[i])
	}
}

// without returns p without an Ethernet header, long enough for BPF_PROG_TEST_RUN to find Ethernet and IP headers in it.
func (p packet) without() packet {
	p.noEthernet = true
	p.payload += ", and more of it"
	return p
}

// into returns p with other ends and, if pair is not empty, an Ethernet header for the pod with that MAC address.
func (p packet) into(src, dst netip.AddrPort, pair string) *packet {
	p.src, p.dst = src, dst
	if pair != "" {
		p.noEthernet, p.ethDst, p.ethSrc = false, pair, "ee"
	}
	return &p
}

// TestTun is the table of decisions on links without Ethernet headers.
func TestTun(t *testing.T) {
	cases := append(tunCases(), tunMixedCases()...)
	for i, c := range cases {
		cases[i].run = func(t *testing.T, w *world) {
			inside := *w
			inside.tunAddresses()
			inside.reset(t, objects.AttachTun)
			c.run(t, &inside)
		}
	}
	runCases(t, objects.AttachTun, cases)
}

func tunCases() []translateCase {
	return []translateCase{
		{"there and back", 0, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.backend)
			p := w.first(w.client, w.service).without()
			w.check(t, fromTun, p, wants{actionRedirect, p.into(w.client, w.backend, ""), once("new_connection", "forward", "redirect_device")})
			p = w.next(w.client, w.service).without()
			w.check(t, fromTun, p, wants{actionRedirect, p.into(w.client, w.backend, ""), once("forward", "redirect_device")})
			p = w.next(w.backend, w.client).without()
			w.check(t, fromTun, p, wants{actionRedirect, p.into(w.service, w.client, ""), once("reverse", "redirect_device")})
		}},
		{"echo", 0, func(t *testing.T, w *world) {
			w.serve(t, w.service)
			p := w.echo("hello").without()
			w.check(t, fromTun, p, wants{actionRedirect, p.echoReply(), once("icmp_echo")})
		}},
		{"another node", 0, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.remote)
			p := w.first(w.client, w.service).without()
			w.check(t, fromTun, p, wants{actionNext, p.into(w.client, w.remote, ""), once("new_connection", "forward", "passed")})
			p = w.next(w.remote, w.client).without()
			w.check(t, toTun, p, wants{actionNext, p.into(w.service, w.client, ""), once("reverse", "passed")})
		}},
		{"straight", 0, func(t *testing.T, w *world) {
			p := w.first(w.client, w.backend).without()
			w.check(t, fromTun, p, wants{actionRedirect, nil, once("redirect_device")})
			p = w.first(w.client, w.outsider).without()
			w.check(t, fromTun, p, wants{actionNext, nil, once("passed")})
			w.check(t, toTun, p, wants{actionNext, nil, once("passed")})
		}},
		{"hairpin", 0, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.backend)
			self := netip.AddrPortFrom(w.backend.Addr(), 40000)
			seen := netip.AddrPortFrom(w.service.Addr(), 40000)
			p := w.first(self, w.service).without()
			w.check(t, fromTun, p, wants{actionRedirect, p.into(seen, w.backend, ""), once("new_connection", "forward", "redirect_device")})
			p = w.next(w.backend, seen).without()
			w.check(t, fromTun, p, wants{actionRedirect, p.into(w.service, self, ""), once("reverse", "redirect_device")})
		}},
		{"fragments", 0, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.backend)
			first, later := w.parts(w.first(w.client, w.service).without())
			w.check(t, fromTun, first, wants{actionRedirect, first.into(w.client, w.backend, ""), once("new_connection", "forward", "redirect_device")})
			w.check(t, fromTun, later, wants{actionRedirect, later.into(w.client, w.backend, ""), once("forward", "redirect_device")})
		}},
		{"error from a router", service.UDP, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.backend)
			w.send(t, fromTun, w.first(w.client, w.service).without())
			p := w.icmp(w.outsider.Addr(), w.client.Addr(), 3, 2).about(w.next(w.client, w.backend)).without()
			out := p.about(w.next(w.client, w.service))
			w.check(t, fromTun, p, wants{actionRedirect, &out, once("icmp_error", "redirect_device")})
		}},
		{"no IP", 0, func(t *testing.T, w *world) {
			p := w.first(w.service, w.backend).without() // its source makes the kernel see another protocol
			w.check(t, fromTun, p, wants{actionNext, nil, once("passed")})
		}},
		{"wrong version", 0, func(t *testing.T, w *world) {
			p := w.first(w.client, w.backend).without()
			p.mangle = func(ip []byte) { ip[0] = 0x55 }
			w.check(t, fromTun, p, wants{actionDrop, nil, once("drop_malformed")})
		}},
	}
}

// tunMixedCases have a pod with Ethernet at one end.
func tunMixedCases() []translateCase {
	return []translateCase{
		{"to a pod with Ethernet", 0, func(t *testing.T, w *world) {
			w.endpoint(t, pod{1, objects.AttachHost, "0a", ""}, w.backend.Addr())
			w.serve(t, w.service, w.backend)
			p := w.first(w.client, w.service).without()
			w.check(t, fromTun, p, wants{actionRedirect, p.into(w.client, w.backend, "0a"), once("new_connection", "forward", "redirect_peer")})
			p = w.next(w.backend, w.client)
			w.check(t, fromHost, p, wants{actionRedirect, p.into(w.service, w.client, ""), once("reverse", "redirect_device")})
		}},
		{"to a pod behind TAP", 0, func(t *testing.T, w *world) {
			w.endpoint(t, pod{1, tapPod, "0a", ""}, w.backend.Addr())
			w.serve(t, w.service, w.backend)
			p := w.first(w.client, w.service).without()
			w.check(t, fromTun, p, wants{actionRedirect, p.into(w.client, w.backend, "0a"), once("new_connection", "forward", "redirect_device")})
		}},
		{"straight to a pod with Ethernet", 0, func(t *testing.T, w *world) {
			w.endpoint(t, pod{1, objects.AttachHost, "0a", ""}, w.backend.Addr())
			p := w.first(w.client, w.backend).without()
			w.check(t, fromTun, p, wants{actionRedirect, p.into(w.client, w.backend, "0a"), once("redirect_peer")})
		}},
		{"to a pod without a host side", 0, func(t *testing.T, w *world) {
			w.endpoint(t, pod{1, objects.AttachPod, "0a", "s"}, w.backend.Addr())
			w.serve(t, w.service, w.backend)
			p := w.first(w.client, w.service).without()
			w.check(t, fromTun, p, wants{actionNext, p.into(w.client, w.backend, ""), once("new_connection", "forward", "passed")})
			p = w.next(w.backend, w.client)
			w.check(t, fromOwn, p, wants{actionNext, nil, once("passed")})
			p = p.without()
			w.check(t, toTun, p, wants{actionNext, p.into(w.service, w.client, ""), once("reverse", "passed")})
		}},
	}
}
