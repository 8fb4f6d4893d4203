// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/datapath/objects"
	"mustang/internal/netns"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// TestRefusePackets compares the answers to packets for a service without a backend with those that the packet builder makes.
func TestRefusePackets(t *testing.T) {
	runCases(t, objects.AttachHost, refuseCases())
}

func refuseCases() []translateCase {
	answered := func(change func(*packet)) func(*testing.T, *world) {
		return func(t *testing.T, w *world) {
			w.serve(t, w.service)
			p := w.first(w.client, w.service).with(func(p *packet) { p.ethDst, p.ethSrc, p.seq = "02", "04", 0xfffffffe })
			p = p.with(change)
			for _, h := range []objects.Hook{fromHost, fromNetkit, fromOwn} {
				w.check(t, h, p, wants{actionRedirect, p.refusal(), once("drop_no_backend")})
			}
			p = p.with(func(p *packet) { p.src = w.outsider }).arriving("aa")
			w.check(t, fromUplink, p, wants{actionRedirect, p.refusal(), once("drop_no_backend")})
			w.connected(t)
		}
	}
	ignored := func(change func(*packet)) func(*testing.T, *world) {
		return func(t *testing.T, w *world) {
			w.serve(t, w.service)
			w.gets(t, fromHost, w.first(w.client, w.service).with(change), "drop: drop_no_backend")
		}
	}
	return []translateCase{
		{"first packet", 0, answered(func(*packet) {})},
		{"odd size", 0, answered(func(p *packet) { p.payload = "odd" })},
		{"in the middle of a connection", service.TCP, answered(func(p *packet) { p.flags, p.ack = flagACK|flagPSH, 77 })},
		{"end of a connection", service.TCP, answered(func(p *packet) { p.flags, p.payload = flagFIN, "" })},
		{"no payload", 0, answered(func(p *packet) { p.payload = "" })},
		{"large", 0, answered(func(p *packet) { p.payload = strings.Repeat("large ", 200) })},
		{"without a checksum", service.UDP, answered(func(p *packet) { p.zeroChecksum = true })},
		{"reset", service.TCP, ignored(func(p *packet) { p.flags = flagRST })},
		{"first fragment", 0, ignored(func(p *packet) { p.fragment = &fragmentPart{id: 1, more: true, whole: p.payload} })},
		{"options", 0, ignored(func(p *packet) {
			p.options = 1
			if p.v6() {
				p.extensions = []extension{{kind: destinationOptions}}
			}
		})},
		{"from a multicast address", 0, ignored(func(p *packet) {
			group := "224.0.0.5"
			if p.v6() {
				group = "ff02::5"
			}
			p.src = netip.AddrPortFrom(netip.MustParseAddr(group), p.src.Port())
		})},
	}
}

// refusal returns the answer to p of a service without a backend.
func (p packet) refusal() *packet {
	r := packet{ethDst: p.ethSrc, ethSrc: p.ethDst, src: p.dst, dst: p.src, proto: p.proto}
	switch {
	case p.proto == protoUDP:
		r.src, r.dst = netip.AddrPortFrom(p.dst.Addr(), 0), netip.AddrPortFrom(p.src.Addr(), 0)
		r.proto, r.icmpType, r.icmpCode, r.quote = protoICMP, 3, 3, &p
		header := 20
		if p.v6() {
			r.proto, r.icmpType, r.icmpCode, header = protoICMPv6, 1, 4, 40
		}
		r.quoteBytes = min(8+len(p.payload), 512-header)
	case p.proto == protoSCTP:
		r.flags, r.seq = chunkAbort, p.seq
		if p.flags == chunkInit {
			r.seq = p.ack
		}
	case p.flags&flagACK != 0:
		r.flags, r.seq = flagRST, p.ack
	default:
		r.flags, r.ack = flagRST|flagACK, p.seq+uint32(len(p.payload))+1 // SYN and FIN count as a byte
	}
	r.mangle = func(ip []byte) {
		if !p.v6() {
			ip[6], ip[10], ip[11] = 0x40, 0, 0 // don't fragment
			binary.BigEndian.PutUint16(ip[10:], ^sum(ip[:20]))
		}
	}
	return &r
}

// TestErrorLimit sends more datagrams to a service without backends than the kernel would answer: their sources may be forged.
func TestErrorLimit(t *testing.T) {
	w := pods(t, false, protoUDP)
	w.serve(t, w.service)
	const sent, second = 20_000, 1000
	frame, answered, begun := w.first(w.client, w.service).frame(), 0, time.Now()
	for range sent {
		if action, _ := w.run(t, fromHost, frame); action == actionRedirect {
			answered++
		}
	}
	most := second * runtime.NumCPU() * (int(time.Since(begun).Seconds()) + 2)
	if answered < second || answered > most {
		t.Errorf("%d of %d datagrams were answered, want %d to %d", answered, sent, second, most)
	}
}

// TestRefuse lets sockets call services without a backend, which must refuse them at once.
func TestRefuse(t *testing.T) {
	onPods(t, "", func(t *testing.T, n network, d *Datapath) {
		for _, f := range families() {
			testRefuse(t, d, n.pods[1], netip.MustParseAddr(f.service))
		}
	})
	t.Run("uplink", func(t *testing.T) {
		n, d := routed(t), openTest(t)
		far := n.wire(t)
		n.attachBoth(t, d)
		must(d.Uplinks().Put(t.Context(), n.host, "wire"))(t)
		for _, host := range []string{near4, near6} {
			testRefuse(t, d, far, netip.MustParseAddr(host))
		}
	})
}

func testRefuse(t *testing.T, d *Datapath, client *netns.Namespace, addr netip.Addr) {
	t.Helper()
	frontend := netip.AddrPortFrom(addr, 99)
	must2(d.Services().Put(t.Context(), service.CLI, service.Service{Frontend: frontend}))(t)
	before := counts(t, d)
	failsWith(t, errOf(testkit.Dial(client, "tcp", frontend.String())), unix.ECONNREFUSED, "tcp to %s", frontend)
	equal(t, delta(t, d, before)["drop_no_backend"], 1, "drop_no_backend")
	for _, size := range []int{1, 300, 1400} {
		failsWith(t, refusedUDP(client, frontend, size), unix.ECONNREFUSED, "udp to %s, %d bytes", frontend, size)
	}
}

// refusedUDP returns the error that a datagram brings back.
func refusedUDP(client *netns.Namespace, to netip.AddrPort, size int) error {
	conn, err := testkit.Dial(client, "udp", to.String())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if _, err = conn.Write(make([]byte, size)); err != nil {
		return err
	}
	if err = conn.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 1))
	return err
}

// TestRefuseLast takes the only backend away from a service that has clients: TCP connections stay, and UDP is refused.
func TestRefuseLast(t *testing.T) {
	n, d := routed(t), openTest(t)
	n.attachBoth(t, d)
	conns := make(map[string]net.Conn)
	exchange := func(name string) error {
		conn := conns[name]
		if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
			return err
		}
		if _, err := conn.Write([]byte("x")); err != nil {
			return err
		}
		_, err := conn.Read(make([]byte, 100))
		return err
	}
	s := service.Service{Frontend: netip.MustParseAddrPort(service4 + ":99")}
	for _, p := range []service.Protocol{service.TCP, service.UDP} {
		s.Protocol, s.Backends = p, service.Backends(testkit.Echo(t, n.pods[0], p.String(), podA4+":0"))
		must2(d.Services().Put(t.Context(), service.CLI, s))(t)
		conn := must(testkit.Dial(n.pods[1], p.String(), s.Frontend.String()))(t)
		defer func() { _ = conn.Close() }()
		conns[p.String()] = conn
		succeed(t, exchange(p.String()))
		s.Backends = nil
		must2(d.Services().Put(t.Context(), service.CLI, s))(t)
	}
	noError(t, exchange("tcp"), "an open TCP connection")
	failsWith(t, exchange("udp"), unix.ECONNREFUSED, "udp")
}
