// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"mustang/internal/datapath/flows"
	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// world has the addresses of one family and builds the packets of one protocol.
type world struct {
	*bench
	v6                       bool
	proto                    uint8
	client, backend, remote  netip.AddrPort // pod b, pod a, and a backend on another node
	service, other, outsider netip.AddrPort
	opened                   int // connections of a benchmark
}

var (
	fromHost = objects.Hook{Point: objects.AttachHost, Program: "from_pod"}
	toHost   = objects.Hook{Point: objects.AttachHost, Program: "to_pod"}
	fromOwn  = objects.Hook{Point: objects.AttachPod, Program: "from_pod"}
	toOwn    = objects.Hook{Point: objects.AttachPod, Program: "to_pod"}

	fromNetkit = objects.Hook{Point: objects.AttachNetkit, Program: "from_pod"}
	toNetkit   = objects.Hook{Point: objects.AttachNetkit, Program: "to_pod"}
	fromTun    = objects.Hook{Point: objects.AttachTun, Program: "from_pod"}
	toTun      = objects.Hook{Point: objects.AttachTun, Program: "to_pod"}
)

func newWorld(b *bench, v6 bool, proto uint8) *world {
	w := &world{bench: b, v6: v6, proto: proto}
	addresses := []string{podB4 + ":40000", podA4 + ":8080", "172.16.1.2:8080", service4 + ":80", "10.96.0.101:80",
		"8.8.8.8:53"}
	if v6 {
		addresses = []string{"[" + podB6 + "]:40000", "[" + podA6 + "]:8080", "[fd00:99::2]:8080", "[" + service6 + "]:80",
			"[fd00:96::101]:80", "[2001:db8::8]:53"}
	}
	for i, ap := range []*netip.AddrPort{&w.client, &w.backend, &w.remote, &w.service, &w.other, &w.outsider} {
		*ap = netip.MustParseAddrPort(addresses[i])
	}
	return w
}

func pods(t testing.TB, v6 bool, proto uint8) *world {
	t.Helper()
	w := newWorld(newBench(t), v6, proto)
	w.reset(t, objects.AttachHost)
	return w
}

// reset empties the maps and stores both pods as endpoints of one attach point.
func (w *world) reset(t testing.TB, s objects.AttachPoint) {
	t.Helper()
	w.clear(t)
	w.endpoint(t, pod{1, s, "0a", "s"}, w.backend.Addr())
	w.endpoint(t, pod{2, s, "0c", "s"}, w.client.Addr())
}

func (w *world) serve(t testing.TB, frontend netip.AddrPort, backends ...netip.AddrPort) uint32 {
	t.Helper()
	return w.put(t, service.Protocol(w.proto), frontend, backends...)
}

func (w *world) store(t testing.TB, row objects.Service) {
	t.Helper()
	key := rows.ServiceKey(w.service, service.Protocol(w.proto))
	row.Tag = w.objects.NodeState.Tag(key)
	succeed(t, errors.Join(w.objects.NodeState.AddFrontends([]objects.ServiceKey{key}), w.objects.Services.Put(key, row)))
}

// first returns the packet that opens a connection; next returns one of an open connection.
func (w *world) first(src, dst netip.AddrPort) packet {
	p := packet{src: src, dst: dst, proto: w.proto, flags: flagSYN, payload: "hello"}
	if w.proto == protoSCTP {
		p.flags, p.ack = chunkInit, 77
	}
	return p
}

func (w *world) next(src, dst netip.AddrPort) packet {
	p := packet{src: src, dst: dst, proto: w.proto, flags: flagACK, payload: "more"}
	if w.proto == protoSCTP {
		p.flags, p.seq = chunkData, 77
	}
	return p
}

// handshake sends the packets of both ends of a TCP connection after its SYN, until each end has proof that the other
// one receives.
func (w *world) handshake(t *testing.T, client, service, backend netip.AddrPort) {
	t.Helper()
	const isn = 4711
	w.send(t, fromHost, w.next(backend, client).with(func(p *packet) { p.flags, p.seq = flagSYN|flagACK, isn }))
	w.send(t, fromHost, w.next(client, service).with(func(p *packet) { p.ack = isn + 1 }))
}

// became returns p with other ends and, if pair is not empty, delivered to the pod with that MAC address.
func (p packet) became(src, dst netip.AddrPort, pair string) *packet {
	p.src, p.dst = src, dst
	if pair != "" {
		p.noEthernet, p.ethDst, p.ethSrc = false, pair, "ee"
	}
	return &p
}

// self is the backend's pod as a client of its own service, and seen is that client as the backend sees it.
func (w *world) self() netip.AddrPort { return netip.AddrPortFrom(w.backend.Addr(), 40000) }
func (w *world) seen() netip.AddrPort { return netip.AddrPortFrom(w.service.Addr(), 40000) }

func (w *world) tuple(from, to netip.AddrPort) objects.Tuple {
	return objects.Tuple{Saddr: rows.EncodeAddr(from.Addr()), Sport: rows.SwapPort(from.Port()),
		Daddr: rows.EncodeAddr(to.Addr()), Dport: rows.SwapPort(to.Port()), Proto: w.proto}
}

// connected fails the test unless the table has exactly these connections.
func (w *world) connected(t *testing.T, want ...flows.Connection) {
	t.Helper()
	got := must(w.Connections())(t)
	testkit.Require(t, len(got) == len(want), "connections %v, want %v", got, want)
	for i := range got {
		want[i].State, want[i].Age, want[i].Idle = got[i].State, got[i].Age, got[i].Idle
		failIf(t, got[i] != want[i], "connection %v, want %v", got[i], want[i])
	}
}

// connect stores one direction of an open connection in a slot that is free.
func (w *world) connect(t testing.TB, from, to objects.Tuple, flags uint32) {
	t.Helper()
	used := make(map[uint32]bool)
	succeed(t, w.objects.Slots.Each(func(index uint32, _ objects.Slot) bool { used[index] = true; return true }))
	index := uint32(0)
	for used[index] {
		index++
	}
	reply := objects.Tuple{Saddr: to.Daddr, Daddr: to.Saddr, Sport: to.Dport, Dport: to.Sport, Proto: to.Proto}
	slot := objects.Slot{From: from, Reply: reply, Use: 1, State: objects.SlotOpen}
	row := objects.ConnectionRow{To: to, AddrDiff: 1, Slot: index, Use: 1, Flags: flags}
	succeed(t, errors.Join(w.objects.Slots.Map.Put(index, slot), w.objects.Connections.Put(from, row)))
}

func (w *world) forget(t *testing.T) {
	t.Helper()
	must(w.objects.EndConnections(func(objects.Slot) bool { return true }))(t)
	w.connected(t)
}

func (w *world) tunnel(p packet, to netip.Addr) packet {
	outer := packet{src: netip.AddrPortFrom(w.remote.Addr(), 0), dst: netip.AddrPortFrom(to, 0), proto: 4,
		payload: string(p.bytes())}
	if w.v6 {
		outer.proto = 41
	}
	return outer.arriving("aa")
}

func (p packet) bytes() []byte {
	p.noEthernet = true
	return p.frame()
}

// hideTransport makes a first fragment of the packet that ends within its transport header, and leaves the rest
// behind it in the frame: the sender can put anything there.
func hideTransport(p *packet) {
	p.fragment = &fragmentPart{id: 7, more: true, whole: p.payload}
	v6 := p.v6()
	p.mangle = func(ip []byte) {
		if v6 {
			binary.BigEndian.PutUint16(ip[4:], 8+7)
			return
		}
		binary.BigEndian.PutUint16(ip[2:], 20+7)
	}
}

// withoutLength sets the length field to 0, as in packets that are too large for it. Such packets exist in both
// families while the kernel has them whole, in IPv6 also with a jumbo option (RFC 2675).
func withoutLength(p *packet) {
	p.payload = strings.Repeat("mustang ", 180)
	v6, jumbo := p.v6(), len(p.extensions) > 0
	p.mangle = func(ip []byte) {
		if v6 {
			binary.BigEndian.PutUint16(ip[4:], 0)
			if jumbo {
				ip[42], ip[43] = 0xc2, 4
				binary.BigEndian.PutUint32(ip[44:], uint32(len(ip)-40))
			}
			return
		}
		binary.BigEndian.PutUint16(ip[2:], 0)
		binary.BigEndian.PutUint16(ip[10:], 0)
		binary.BigEndian.PutUint16(ip[10:], ^sum(ip[:20]))
	}
}

func (w *world) icmp(src, dst netip.Addr, type4, type6 uint8) packet {
	p := packet{src: netip.AddrPortFrom(src, 0), dst: netip.AddrPortFrom(dst, 0), proto: protoICMP, icmpType: type4}
	if w.v6 {
		p.proto, p.icmpType = protoICMPv6, type6
	}
	return p
}

func (w *world) parts(p packet) (first, later packet) {
	p.payload = strings.Repeat("fragment", 10)
	return p.part(0, 32), p.part(32, 80)
}

func (p packet) part(from, to int) packet {
	header := len(p.with(func(p *packet) { p.payload = "" }).transport())
	f := &fragmentPart{id: 77, whole: p.payload, more: to < len(p.payload)}
	if from > 0 {
		f.offset = (from + header + 7) / 8
	}
	p.payload, p.fragment = p.payload[from:to], f
	return p
}

func (w *world) open(t *testing.T, backend netip.AddrPort) {
	t.Helper()
	w.serve(t, w.service, backend)
	w.send(t, fromHost, w.first(w.client, w.service))
}

func (p packet) about(quote packet) packet {
	p.quote = &quote
	return p
}
