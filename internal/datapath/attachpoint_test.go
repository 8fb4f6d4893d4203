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
			w.gets(t, fromOwn, w.first(w.client, w.service), "next client>backend @0a: new_connection forward l2_delivered")
			w.gets(t, toOwn, w.next(w.client, w.backend), "next: passed")
			w.gets(t, fromOwn, w.next(w.backend, w.client), "next service>client @0c: reverse l2_delivered")
			w.gets(t, toOwn, w.next(w.service, w.client), "next: passed")
		}},
		{"to another segment", 0, func(t *testing.T, w *world) {
			w.endpoint(t, pod{1, objects.AttachPod, "0a", "x"}, w.backend.Addr())
			w.serve(t, w.service, w.backend)
			w.gets(t, fromOwn, w.first(w.client, w.service), "next client>backend @0e: new_connection forward passed")
		}},
		{"to a pod with a host side", 0, func(t *testing.T, w *world) {
			w.endpoint(t, pod{1, objects.AttachHost, "0a", "s"}, w.backend.Addr())
			w.serve(t, w.service, w.backend)
			w.gets(t, fromOwn, w.first(w.client, w.service), "next client>backend @0e: new_connection forward passed")
		}},
		{"from a pod with a host side", 0, func(t *testing.T, w *world) {
			w.endpoint(t, pod{2, objects.AttachHost, "0c", "s"}, w.client.Addr())
			w.serve(t, w.service, w.backend)
			w.gets(t, fromHost, w.first(w.client, w.service), "next client>backend @0e: new_connection forward passed")
			// The answer is left to the program that the client's pod has.
			p := w.next(w.backend, w.client)
			w.gets(t, fromOwn, p, "next: passed")
			w.gets(t, toHost, p, "next service>client @0e: reverse passed")
		}},
		{"back from another node", 0, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.remote)
			w.send(t, fromOwn, w.first(w.client, w.service))
			w.gets(t, toOwn, w.next(w.remote, w.client), "next service>client @0e: reverse passed")
		}},
		{"straight to a pod", 0, func(t *testing.T, w *world) {
			w.gets(t, fromOwn, w.first(w.client, w.backend), "next: passed")
		}},
		{"hairpin", 0, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.backend)
			p := w.first(w.self(), w.service)
			p.ethSrc = "0a"
			w.gets(t, fromOwn, p, "redirect seen>backend @0a: new_connection forward hairpin")
			p = w.next(w.backend, w.seen())
			p.ethSrc = "0a"
			w.gets(t, fromOwn, p, "redirect service>self @0a: reverse hairpin")
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
			w.gets(t, fromNetkit, p, "redirect client>backend 0a: new_connection forward redirect_device")
			w.gets(t, fromNetkit, w.next(w.backend, w.client), "redirect service>client 0c: reverse redirect_device")
		}},
		{"another node", 0, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.remote)
			w.gets(t, fromNetkit, w.first(w.client, w.service), "next client>remote: new_connection forward passed")
			w.gets(t, toNetkit, w.next(w.remote, w.client), "next service>client: reverse passed")
		}},
		{"straight", 0, func(t *testing.T, w *world) {
			w.gets(t, fromNetkit, w.first(w.client, w.backend), "redirect client>backend 0a: redirect_device")
		}},
		{"hairpin", 0, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.backend)
			p := w.first(w.self(), w.service)
			w.gets(t, fromNetkit, p, "redirect seen>backend 0a: new_connection forward redirect_device")
			w.gets(t, fromNetkit, w.next(w.backend, w.seen()), "redirect service>self 0a: reverse redirect_device")
		}},
		{"to a pod behind TUN", 0, func(t *testing.T, w *world) {
			w.endpoint(t, pod{1, objects.AttachTun, "", ""}, w.backend.Addr())
			w.gets(t, fromNetkit, w.first(w.client, w.backend), "redirect: redirect_device")
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
			w.gets(t, fromHost, p, "redirect client>backend 0a: new_connection forward redirect_device")
			w.gets(t, fromHost, w.next(w.backend, w.client), "redirect service>client 0c: reverse redirect_peer")
		}},
		{"straight to a pod behind TAP", 0, func(t *testing.T, w *world) {
			w.endpoint(t, pod{1, tapPod, "0a", ""}, w.backend.Addr())
			w.gets(t, fromHost, w.first(w.client, w.backend), "redirect client>backend 0a: redirect_device")
		}},
		{"to a pod behind TUN", 0, func(t *testing.T, w *world) {
			w.endpoint(t, pod{1, objects.AttachTun, "", ""}, w.backend.Addr())
			w.serve(t, w.service, w.backend)
			p := w.first(w.client, w.service)
			w.gets(t, fromHost, p, "redirect client>backend: new_connection forward redirect_device")
		}},
		{"answer to a pod without a host side", 0, func(t *testing.T, w *world) {
			w.endpoint(t, pod{2, objects.AttachPod, "0c", "s"}, w.client.Addr())
			w.serve(t, w.service, w.backend)
			w.send(t, fromOwn, w.first(w.client, w.service))
			p := w.next(w.backend, w.client)
			w.gets(t, fromHost, p, "next: passed")
			w.gets(t, toOwn, p, "next service>client: reverse passed")
		}},
		{"error to a pod without a host side", service.UDP, func(t *testing.T, w *world) {
			w.endpoint(t, pod{2, objects.AttachPod, "0c", "s"}, w.client.Addr())
			w.serve(t, w.service, w.backend)
			w.send(t, fromOwn, w.first(w.client, w.service))
			p := w.icmp(w.backend.Addr(), w.client.Addr(), 3, 1).about(w.next(w.client, w.backend))
			out := p.about(w.next(w.client, w.service)).became(netip.AddrPortFrom(w.service.Addr(), 0), p.dst, "")
			w.gets(t, fromHost, p, "next: passed")
			w.check(t, toOwn, p, wants{actionNext, out, once("icmp_error", "passed")})
		}},
		{"pod that becomes one after its connection", 0, func(t *testing.T, w *world) {
			w.open(t, w.remote)
			w.endpoint(t, pod{3, objects.AttachHost, "0e", ""}, w.remote.Addr())
			w.gets(t, fromHost, w.next(w.client, w.service), "next client>remote: forward passed")
			if w.proto == protoTCP {
				w.gets(t, fromHost, w.first(w.client, w.service), "next client>remote: kept_connection forward passed")
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
			w.gets(t, fromTun, p, "redirect client>backend: new_connection forward redirect_device")
			w.gets(t, fromTun, w.next(w.client, w.service).without(), "redirect client>backend: forward redirect_device")
			w.gets(t, fromTun, w.next(w.backend, w.client).without(), "redirect service>client: reverse redirect_device")
		}},
		{"echo", 0, func(t *testing.T, w *world) {
			w.serve(t, w.service)
			p := w.echo("hello").without()
			w.check(t, fromTun, p, wants{actionRedirect, p.echoReply(), once("icmp_echo")})
		}},
		{"another node", 0, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.remote)
			w.gets(t, fromTun, w.first(w.client, w.service).without(), "next client>remote: new_connection forward passed")
			w.gets(t, toTun, w.next(w.remote, w.client).without(), "next service>client: reverse passed")
		}},
		{"straight", 0, func(t *testing.T, w *world) {
			w.gets(t, fromTun, w.first(w.client, w.backend).without(), "redirect: redirect_device")
			p := w.first(w.client, w.outsider).without()
			w.gets(t, fromTun, p, "next: passed")
			w.gets(t, toTun, p, "next: passed")
		}},
		{"hairpin", 0, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.backend)
			p := w.first(w.self(), w.service).without()
			w.gets(t, fromTun, p, "redirect seen>backend: new_connection forward redirect_device")
			w.gets(t, fromTun, w.next(w.backend, w.seen()).without(), "redirect service>self: reverse redirect_device")
		}},
		{"fragments", 0, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.backend)
			first, later := w.parts(w.first(w.client, w.service).without())
			w.gets(t, fromTun, first, "redirect client>backend: new_connection forward redirect_device")
			w.gets(t, fromTun, later, "redirect client>backend: forward redirect_device")
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
			w.gets(t, fromTun, p, "next: passed")
		}},
		{"wrong version", 0, func(t *testing.T, w *world) {
			p := w.first(w.client, w.backend).without()
			p.mangle = func(ip []byte) { ip[0] = 0x55 }
			w.gets(t, fromTun, p, "drop: drop_malformed")
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
			w.gets(t, fromTun, p, "redirect client>backend 0a: new_connection forward redirect_peer")
			w.gets(t, fromHost, w.next(w.backend, w.client), "redirect service>client: reverse redirect_device")
		}},
		{"to a pod behind TAP", 0, func(t *testing.T, w *world) {
			w.endpoint(t, pod{1, tapPod, "0a", ""}, w.backend.Addr())
			w.serve(t, w.service, w.backend)
			p := w.first(w.client, w.service).without()
			w.gets(t, fromTun, p, "redirect client>backend 0a: new_connection forward redirect_device")
		}},
		{"straight to a pod with Ethernet", 0, func(t *testing.T, w *world) {
			w.endpoint(t, pod{1, objects.AttachHost, "0a", ""}, w.backend.Addr())
			w.gets(t, fromTun, w.first(w.client, w.backend).without(), "redirect client>backend 0a: redirect_peer")
		}},
		{"to a pod without a host side", 0, func(t *testing.T, w *world) {
			w.endpoint(t, pod{1, objects.AttachPod, "0a", "s"}, w.backend.Addr())
			w.serve(t, w.service, w.backend)
			w.gets(t, fromTun, w.first(w.client, w.service).without(), "next client>backend: new_connection forward passed")
			p := w.next(w.backend, w.client)
			w.gets(t, fromOwn, p, "next: passed")
			p = p.without()
			w.gets(t, toTun, p, "next service>client: reverse passed")
		}},
	}
}
