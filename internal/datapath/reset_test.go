// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"errors"
	"maps"
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/datapath/rows"
	"mustang/internal/netns"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// connection is both ends of an open TCP connection.
type connection struct{ client, server net.Conn }

func openTo(t *testing.T, client place, frontend netip.AddrPort, l net.Listener) (c connection) {
	t.Helper()
	succeed(t, client.do(t, func() (err error) {
		c.client, err = net.DialTimeout("tcp", frontend.String(), 5*time.Second)
		return err
	}))
	c.server = must(l.Accept())(t)
	t.Cleanup(func() { _ = errors.Join(c.client.Close(), c.server.Close()) })
	for _, end := range []net.Conn{c.client, c.server} {
		succeed(t, end.SetDeadline(time.Now().Add(20*time.Second)))
	}
	succeed(t, c.talks())
	return c
}

func (c connection) talks() error {
	for _, ends := range [][2]net.Conn{{c.client, c.server}, {c.server, c.client}} {
		if _, err := ends[0].Write([]byte("x")); err != nil {
			return err
		}
		if _, err := ends[1].Read(make([]byte, 1)); err != nil {
			return err
		}
	}
	return nil
}

func listenTCP(t *testing.T, ns *netns.Namespace, ip string) (l net.Listener) {
	t.Helper()
	succeed(t, ns.Do(func() (err error) {
		l, err = net.Listen("tcp", net.JoinHostPort(ip, "0"))
		return err
	}))
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// testResets removes the backend of idle connections. Then one end or the other sends first, and both learn that
// their connection has ended.
func testResets(t *testing.T, n network, d *Datapath, f family) {
	l := listenTCP(t, n.pods[0], f.pod)
	s := newService(service.TCP, net.JoinHostPort(f.service, "5201"), l.Addr().String())
	s.OnRemove = service.Reset
	kept := s
	kept.Frontend, kept.OnRemove = netip.AddrPortFrom(s.Frontend.Addr(), 5202), service.Keep
	putService(t, d, kept)
	putService(t, d, s)
	client := place{ns: n.pods[1]}
	quiet := openTo(t, client, s.Frontend, l)
	loud := openTo(t, client, s.Frontend, l)
	keeps := openTo(t, client, kept.Frontend, l)
	s.Backends, kept.Backends = nil, nil
	putService(t, d, s)
	putService(t, d, kept)
	for _, ends := range [][2]net.Conn{{quiet.client, quiet.server}, {loud.server, loud.client}} {
		for _, end := range ends {
			noError(t, errOf(end.Write(make([]byte, 20000))), "%s to %s", end.LocalAddr(), end.RemoteAddr())
			failsWith(t, errOf(end.Read(make([]byte, 1))), unix.ECONNRESET, "%s to %s", end.LocalAddr(), end.RemoteAddr())
		}
	}
	noError(t, keeps.talks(), "a connection of a service that keeps its own")
}

// testResetSockets removes the backend of connections that socket translation made, by each call that can.
func testResetSockets(t *testing.T, s *stage) {
	for _, d := range dialects()[:2] {
		l := listenTCP(t, s.pods[0], d.pod)
		want := newService(service.Any, d.service, l.Addr().String())
		want.OnRemove = service.Reset
		fewer, keeps := want, want
		fewer.Backends, keeps.Backends = nil, nil
		keeps.OnRemove = service.Keep
		for _, c := range []struct {
			name string
			do   func()
			ends bool
		}{
			{"Put", func() { putService(t, s.Datapath, fewer) }, true},
			{"Delete", func() { succeed(t, s.Services().Delete(t.Context(), service.CLI, want.Key())) }, true},
			{"Recover after death", func() {
				die(t, s.Datapath, fewer.Key(), fewer)
				succeed(t, s.Recover(t.Context()))
			}, true},
			{"Put of one that keeps", func() { putService(t, s.Datapath, keeps) }, false},
		} {
			t.Run(d.name+"/"+c.name, func(t *testing.T) {
				putService(t, s.Datapath, want)
				conn := openTo(t, s.client(), want.Frontend, l)
				direct := openTo(t, s.client(), want.Backends[0].Addr, l)
				before := counts(t, s.Datapath)
				c.do()
				noError(t, direct.talks(), "a connection to the backend itself")
				if !c.ends {
					noError(t, conn.talks())
					return
				}
				failsWith(t, errOf(conn.client.Read(make([]byte, 1))), unix.ECONNABORTED, "the client")
				failsWith(t, errOf(conn.server.Read(make([]byte, 1))), unix.ECONNRESET, "the backend")
				equal(t, delta(t, s.Datapath, before)["sock_destroy"], 1, "sock_destroy")
			})
		}
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

// TestErrorLimit sends more datagrams to a service without backends than the kernel would answer: their sources may be
// forged.
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
	testkit.Check(t, answered >= second && answered <= most,
		"%d of %d datagrams were answered, want %d to %d", answered, sent, second, most)
}

// testNoBackend lets sockets call services without a backend, which must refuse them at once.
func testNoBackend(t *testing.T, n network, d *Datapath, f family) {
	wantRefusal(t, d, n.pods[1], f.service)
}

func wantRefusal(t *testing.T, d *Datapath, client *netns.Namespace, address string) {
	t.Helper()
	frontend := netip.AddrPortFrom(netip.MustParseAddr(address), 99)
	must2(d.Services().Put(t.Context(), service.CLI, service.Service{Frontend: frontend}))(t)
	before := counts(t, d)
	failsWith(t, errOf(testkit.Dial(client, "tcp", frontend.String())), unix.ECONNREFUSED, "tcp to %s", frontend)
	equal(t, delta(t, d, before)["drop_no_backend"], 1, "drop_no_backend")
	for _, size := range []int{1, 300, 1400} {
		failsWith(t, refusedUDP(client, frontend, size, 0), unix.ECONNREFUSED, "udp to %s, %d bytes", frontend, size)
	}
}

func (w *world) echo(payload string) packet {
	p := packet{src: w.client, dst: w.service, proto: protoICMP, icmpType: 8, payload: payload, ethDst: "02", ethSrc: "04"}
	if w.v6 {
		p.proto, p.icmpType = protoICMPv6, 128
	}
	return p
}

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

// testEchoes lets a pod ping the addresses of services.
func testEchoes(t *testing.T, n network, d *Datapath, f family) {
	wantEcho(t, d, n.pods[1], f.service, 1, 56, 1400)
}

// wantEcho pings the address of a service.
//
//revive:disable-next-line:argument-limit // t comes on top
func wantEcho(t *testing.T, d *Datapath, client *netns.Namespace, address string, sizes ...int) {
	t.Helper()
	addr := netip.MustParseAddr(address)
	putService(t, d, service.Service{Frontend: netip.AddrPortFrom(addr, 99)})
	before := counts(t, d)
	for _, size := range sizes {
		noError(t, testkit.Ping(client, addr, size), "%d bytes", size)
	}
	equal(t, delta(t, d, before)["icmp_echo"], uint64(len(sizes)), "answers of %s", address)
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
