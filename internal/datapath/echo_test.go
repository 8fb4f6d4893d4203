// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"maps"
	"net/netip"
	"strings"
	"testing"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
	"mustang/internal/netns"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// TestEchoPackets compares the answers to echo requests with those that the packet builder makes.
func TestEchoPackets(t *testing.T) {
	runCases(t, objects.AttachHost, append(answeredEchoes(), ignoredEchoes()...))
}

// echo returns an echo request to the service.
func (w *world) echo(payload string) packet {
	p := packet{src: w.client, dst: w.service, proto: protoICMP, icmpType: 8, payload: payload, ethDst: "02", ethSrc: "04"}
	if w.v6 {
		p.proto, p.icmpType = protoICMPv6, 128
	}
	return p
}

// echoReply returns what a request becomes.
func (p packet) echoReply() *packet {
	p.src, p.dst, p.ethDst, p.ethSrc = p.dst, p.src, p.ethSrc, p.ethDst
	p.icmpType = 0
	if p.v6() {
		p.icmpType = 129
	}
	return &p
}

// header sets the time to live, and in IPv4 the number and the bit of a packet that must not be fragmented.
func header(hops byte) func([]byte) {
	return func(ip []byte) {
		if ip[0]>>4 == 6 {
			ip[7] = hops
			return
		}
		copy(ip[4:], []byte{0x12, 0x34, 0x40, 0})
		ip[8], ip[10], ip[11] = hops, 0, 0
		binary.BigEndian.PutUint16(ip[10:], ^sum(ip[:20]))
	}
}

func answeredEchoes() []translateCase {
	answered := func(payload string) func(*testing.T, *world) {
		return func(t *testing.T, w *world) {
			w.serve(t, w.service)
			p := w.echo(payload).with(func(p *packet) { p.mangle = header(3) })
			reply := p.echoReply()
			reply.mangle = header(64)
			for _, h := range []objects.Hook{fromHost, fromNetkit, fromOwn} {
				w.check(t, h, p, wants{actionRedirect, reply, once("icmp_echo")})
			}
			p = w.echo(payload).with(func(p *packet) { p.src = w.outsider }).arriving("aa")
			w.check(t, fromUplink, p, wants{actionRedirect, p.echoReply(), once("icmp_echo")})
			w.connected(t)
		}
	}
	return []translateCase{
		{"echo", 0, answered("hello")},
		{"echo without payload", 0, answered("")},
		{"large echo", 0, answered(strings.Repeat("large", 600))},
		{"echo to a service with backends", 0, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.backend)
			p := w.echo("hello")
			w.check(t, fromHost, p, wants{actionRedirect, p.echoReply(), once("icmp_echo")})
		}},
		{"echo to one of several services", 0, func(t *testing.T, w *world) {
			other := netip.AddrPortFrom(w.service.Addr(), 81)
			w.serve(t, w.service)
			w.serve(t, other)
			w.serve(t, w.service, w.backend)
			p := w.echo("hello")
			for _, gone := range []netip.AddrPort{w.service, other} {
				w.check(t, fromHost, p, wants{actionRedirect, p.echoReply(), once("icmp_echo")})
				succeed(t, w.Services().Delete(t.Context(), service.CLI, service.Key{Frontend: gone, Protocol: service.Protocol(w.proto)}))
			}
			w.gets(t, fromHost, p, "next: passed")
		}},
	}
}

func ignoredEchoes() []translateCase {
	passed := wants{actionNext, nil, once("passed")}
	ignored := func(change func(*packet)) func(*testing.T, *world) {
		return func(t *testing.T, w *world) {
			w.serve(t, w.service)
			w.check(t, fromHost, w.echo("hello").with(change), passed)
		}
	}
	return []translateCase{
		{"echo to no service", 0, func(t *testing.T, w *world) {
			w.serve(t, w.service)
			p := w.echo("hello")
			p.dst = w.other
			w.check(t, fromHost, p, passed)
		}},
		{"echo to an address that a pod has got", 0, func(t *testing.T, w *world) {
			w.serve(t, w.service)
			w.endpoint(t, pod{3, objects.AttachHost, "0d", "s"}, w.service.Addr())
			p := w.echo("hello")
			w.check(t, fromHost, p, wants{actionRedirect, p.became(p.src, p.dst, "0d"), once("redirect_peer")})
		}},
		{"echo into a pod", 0, func(t *testing.T, w *world) {
			w.serve(t, w.service)
			w.check(t, toHost, w.echo("hello"), passed)
		}},
		{"echo reply", 0, ignored(func(p *packet) { p.icmpType = p.echoReply().icmpType })},
		{"first fragment of an echo", 0, ignored(func(p *packet) { p.fragment = &fragmentPart{id: 1, more: true, whole: p.payload} })},
		{"later fragment of an echo", 0, ignored(func(p *packet) { p.fragment = &fragmentPart{id: 1, offset: 1} })},
		{"echo with options", 0, ignored(func(p *packet) {
			p.options = 1
			if p.v6() {
				p.extensions = []extension{{kind: destinationOptions}}
			}
		})},
	}
}

// TestEcho lets pods and clients outside ping the addresses of services.
func TestEcho(t *testing.T) {
	onPods(t, "", func(t *testing.T, n network, d *Datapath) {
		for _, f := range families() {
			testEcho(t, d, n.pods[1], f.service, 1, 56, 1400)
		}
	})
	t.Run("jumbo", func(t *testing.T) {
		n, d := routed(t), openTest(t)
		n.attachBoth(t, d)
		n.run(t, `
			-n HOST link set vb mtu 9000
			-n PODB link set eth0 mtu 9000`)
		for _, f := range families() {
			testEcho(t, d, n.pods[1], f.service, 8952)
		}
	})
	t.Run("uplink", func(t *testing.T) {
		n, d := routed(t), openTest(t)
		far := n.wire(t)
		n.attachBoth(t, d)
		must(d.Uplinks().Put(t.Context(), n.host, "wire"))(t)
		for _, f := range families() {
			testEcho(t, d, far, f.service, 56)
		}
		for _, host := range []string{near4, near6} { // where the kernel answers
			putEcho(t, d, host)
			before := counts(t, d)
			for _, client := range []*netns.Namespace{far, n.pods[1]} {
				noError(t, testkit.Ping(client, netip.MustParseAddr(host), 56))
			}
			equal(t, delta(t, d, before)["icmp_echo"], 0, "icmp_echo")
		}
	})
}

// putEcho creates a service without backends at an address.
func putEcho(t *testing.T, d *Datapath, address string) {
	t.Helper()
	frontend := netip.AddrPortFrom(netip.MustParseAddr(address), 99)
	must2(d.Services().Put(t.Context(), service.CLI, service.Service{Frontend: frontend}))(t)
}

// testEcho pings the address of a service.
//
//revive:disable-next-line:argument-limit // t comes on top
func testEcho(t *testing.T, d *Datapath, client *netns.Namespace, address string, sizes ...int) {
	t.Helper()
	putEcho(t, d, address)
	before := counts(t, d)
	for _, size := range sizes {
		noError(t, testkit.Ping(client, netip.MustParseAddr(address), size), "%d bytes", size)
	}
	if diff := delta(t, d, before); diff["icmp_echo"] != uint64(len(sizes)) {
		t.Errorf("%s: counted %v, want %d answers", address, diff, len(sizes))
	}
}

// wantAddresses fails the test unless the addresses that answer follow from the services.
func wantAddresses(t *testing.T, d *Datapath) {
	t.Helper()
	all := must(d.Services().List(t.Context()))(t)
	want, got := make(map[netip.Addr]uint32), make(map[netip.Addr]uint32)
	for _, s := range all {
		if !s.NodePort && !s.Frontend.Addr().IsLoopback() {
			want[s.Frontend.Addr()]++
		}
	}
	for row, err := range d.objects.ServiceAddrs.All() {
		succeed(t, err)
		got[rows.DecodeAddr(row.Key)] = row.Value
	}
	failIf(t, !maps.Equal(got, want), "addresses %v, want %v", got, want)
}
