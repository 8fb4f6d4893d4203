// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// TestSettingsElsewhere gives source ranges and a policy to services whose backend is on another node.
func TestSettingsElsewhere(t *testing.T) {
	n := newNodes(t)
	if !hasSCTP() {
		testkit.NeedsOther(t)
	}
	n.each(t, allProtocols, func(t *testing.T, o outsideCase) {
		far, near := o.echo(t, n.farPod, o.remote), o.echo(t, n.pods[0], o.pod)
		s := o.service(far)
		clientPort := 40000 + 100*uint16(o.dsr) // of associations that are made of packets
		served := func(here bool) {
			t.Helper()
			o.put(t, s)
			before := settled(t, n.d)
			clientPort++
			var err error
			if o.protocol == service.SCTP {
				err = roundTripSCTP(n.client, netip.AddrPortFrom(o.outer, clientPort), s.Frontend)
			} else {
				_, err = testkit.RoundTrip(t, n.client, o.protocol.String(), s.Frontend.String(), []byte("elsewhere"))
			}
			diff := delta(t, n.d, before)
			failIf(t, err != nil || (diff["redirect_routed"] == 0) != here, "served: %v, counted %v", err, diff)
			failIf(t, (diff["encapsulated"] > 0) != (!here && o.dsr == service.IPIP), "counted %v", diff)
		}
		dropped := func(reason string) {
			t.Helper()
			o.put(t, s)
			before := counts(t, n.d)
			noError(t, tryOnce(n.client, s))
			got := delta(t, n.d, before)
			failIf(t, got[reason] == 0 || got["new_connection"] != 0, "counted %v, want %s", got, reason)
		}
		served(false)
		around, _ := o.outer.Prefix(o.outer.BitLen() - 8)
		s.SourceRanges = []netip.Prefix{around}
		served(false)
		s.SourceRanges = []netip.Prefix{rangeOf(o.outer.Next())}
		dropped("drop_source_range")
		s.SourceRanges, s.ExternalPolicy = []netip.Prefix{rangeOf(o.outer)}, service.Local
		dropped("drop_no_local_backend")
		s.Backends = append(s.Backends, service.Backend{Addr: near, Local: true})
		for range 4 { // half of them would go elsewhere
			served(true)
		}
	})
}

// roundTripSCTP sends a message to a service and gets it back, with hand-made packets if the kernel lacks SCTP.
func roundTripSCTP(ns *netns.Namespace, from, to netip.AddrPort) error {
	if hasSCTP() {
		fd, err := socketSCTP(ns, to, unix.Connect)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		got := make([]byte, 64)
		if _, err := unix.Write(fd, []byte("elsewhere")); err != nil {
			return err
		}
		if n, err := unix.Read(fd, got); err != nil || string(got[:n]) != "elsewhere" {
			return fmt.Errorf("read %q: %w", got[:n], err)
		}
		return nil
	}
	conn, err := rawSCTP(ns, to.Addr())
	if err != nil {
		return err
	}
	defer conn.Close()
	p := packet{src: from, dst: to, proto: protoSCTP}
	for _, p.flags = range []uint8{chunkInit, chunkCookieEcho, chunkData} {
		got, err := exchangeSCTP(conn, p, 5*time.Second)
		if sent := p.transport(); err == nil && !bytes.Equal(got[:4], slices.Concat(sent[2:4], sent[:2])) {
			err = fmt.Errorf("answer from and to ports %x", got[:4])
		}
		if err != nil {
			return fmt.Errorf("chunk %d: %w", p.flags, err)
		}
	}
	return nil
}

// TestSCTPPortsElsewhere has two clients outside open associations from one port, which no node can change: with a
// service of several backends on other nodes, each gets another one. Direct server return leaves the client its
// address.
func TestSCTPPortsElsewhere(t *testing.T) {
	n := newNodes(t)
	n.run(t, "-n "+n.client.Name()+" addr add 172.16.2.3/24 dev outer\n-n "+n.client.Name()+
		" addr add fd00:98::3/64 dev outer nodad")
	n.each(t, []service.Protocol{service.SCTP}, func(t *testing.T, o outsideCase) {
		port := 40000 + 100*uint16(o.dsr)
		open := func(s service.Service) map[string]uint64 {
			t.Helper()
			putService(t, n.d, s)
			port++
			before := settled(t, n.d)
			for _, client := range []netip.Addr{o.outer, o.outer.Next()} {
				succeed(t, sendIP(n.client, packet{src: netip.AddrPortFrom(client, port), dst: s.Frontend, proto: protoSCTP,
					flags: chunkInit}))
			}
			settled(t, n.d)
			return delta(t, n.d, before)
		}
		s := o.service(netip.AddrPortFrom(o.remote, 5201), netip.AddrPortFrom(o.farNode, 5201))
		rounds := 20
		if o.dsr != service.NoDSR {
			s.Backends, rounds = s.Backends[:1], 1
		}
		for range rounds {
			got := open(s)
			failIf(t, got["new_connection"] != 2 || got["drop_port_exhausted"] != 0, "%d backends: counted %v", len(s.Backends),
				got)
		}
		if s.Backends = s.Backends[:1]; o.dsr == service.NoDSR {
			got := open(s)
			failIf(t, got["new_connection"] != 1 || got["drop_port_exhausted"] == 0, "one backend: counted %v", got)
		}
	})
}

// sendIP sends a packet by a raw socket of its protocol, from its source.
func sendIP(ns *netns.Namespace, p packet) error {
	return ns.Do(func() error {
		from, to := &net.IPAddr{IP: p.src.Addr().AsSlice()}, &net.IPAddr{IP: p.dst.Addr().AsSlice()}
		conn, err := net.DialIP(fmt.Sprintf("ip:%d", p.proto), from, to)
		if err != nil {
			return err
		}
		_, err = conn.Write(p.transport())
		return errors.Join(err, conn.Close())
	})
}

// TestDSRPathMTU has a router on the client's side report a small path MTU to the service on the first node. The
// report must reach the backend on the second node.
func TestDSRPathMTU(t *testing.T) {
	n := newNodes(t)
	n.each(t, []service.Protocol{service.UDP}, func(t *testing.T, o outsideCase) { // whose errors need no sequence number
		if o.dsr == service.NoDSR {
			return
		}
		s := o.service(o.echo(t, n.farPod, o.remote))
		o.put(t, s)
		conn := must(testkit.Dial(n.client, "udp", s.Frontend.String()))(t)
		defer func() { _ = conn.Close() }()
		succeed(t, ask(conn, []byte("narrow?")))
		answer := packet{src: s.Frontend, dst: netip.AddrPortFrom(o.outer, uint16(conn.LocalAddr().(*net.UDPAddr).Port)),
			proto: protoUDP, payload: strings.Repeat("x", 100)}
		tooBig := packet{src: answer.dst, dst: answer.src, proto: protoICMP, icmpType: 3, icmpCode: 4, quote: &answer,
			word: 1300}
		if o.all.Is6() {
			tooBig.proto, tooBig.icmpType, tooBig.icmpCode = protoICMPv6, 2, 0
		}
		before, beforeOther := settled(t, n.d), settled(t, n.other)
		succeed(t, sendIP(n.client, tooBig))
		testkit.Eventually(t, 20*time.Second, func() error {
			if out := testkit.Command(t, n.farPod, "ip route get "+o.outer.String()); !strings.Contains(out, "mtu 1300") {
				return fmt.Errorf("the backend's route: %s; counted %v and %v", out, delta(t, n.d, before),
					delta(t, n.other, beforeOther))
			}
			return nil
		})
	})
}

// TestNoWay expects that no packet reaches the other node in any form if this one lacks an address on the uplink to
// it, or a route.
func TestNoWay(t *testing.T) {
	c := newCluster(t)
	device := must(rtnl.In(c.far).Device("wire"))(t)
	var leaked atomic.Int64
	testkit.WatchPackets(t, c.far, device.Index, func(packet []byte) {
		if bytes.Contains(packet, []byte("no way")) || bytes.Contains(packet, binary.BigEndian.AppendUint16(nil, 47123)) {
			leaked.Add(1)
		}
	})
	for _, step := range [][2]string{
		{"drop_no_source", `
			-n HOST addr del ` + near4 + `/24 dev wire
			-n HOST addr del ` + near6 + `/64 dev wire
			-n HOST route replace ` + far4 + ` dev wire
			-n HOST route replace ` + far6 + ` dev wire`},
		{"drop_no_route", `
			-n HOST route replace unreachable ` + far4 + `
			-n HOST route replace unreachable ` + far6},
		{"drop_tunnel_route", `
			-n HOST route replace ` + far4 + ` encap ip id 7 dst ` + far4 + ` dev wire
			-n HOST route replace ` + far6 + ` encap ip6 id 7 dst ` + far6 + ` dev wire`},
	} {
		c.run(t, step[1])
		must(c.d.Uplinks().Put(t.Context(), c.host, "wire"))(t)
		c.each(t, tcpAndUDP, func(t *testing.T, o outsideCase) {
			s := o.service(netip.AddrPortFrom(o.farNode, 47123))
			o.put(t, s)
			before := counts(t, c.d)
			noError(t, tryOnce(c.client, s))
			awaitCount(t, c.d, before, step[0])
		})
	}
	equal(t, leaked.Load(), 0, "packets left the node")
}

// TestFragmentsOfManyConnections has connections from outside send datagrams in fragments to another node. All leave
// from one address: the fragments of each datagram have one identification, and not the client's.
func TestFragmentsOfManyConnections(t *testing.T) {
	const connections = 8
	c := newCluster(t)
	var mu sync.Mutex
	seen := make(map[string]map[byte][]uint32) // identifications by device and the datagram's letter
	for device, ns := range map[string]*netns.Namespace{"outer": c.host, "wire": c.far} {
		link := must(rtnl.In(ns).Device(device))(t)
		testkit.WatchPackets(t, ns, link.Index, func(packet []byte) {
			v := viewFrame(slices.Concat(packet, make([]byte, 60)), true)
			mu.Lock()
			defer mu.Unlock()
			if letter := packet[len(packet)-1]; (v.first || v.later) && letter >= 'A' && letter < 'A'+connections {
				seen[device][letter] = append(seen[device][letter], v.id)
			}
		})
	}
	c.each(t, []service.Protocol{service.UDP}, func(t *testing.T, o outsideCase) {
		mu.Lock()
		seen["outer"], seen["wire"] = make(map[byte][]uint32), make(map[byte][]uint32)
		mu.Unlock()
		s := o.service(o.echo(t, c.far, o.farNode))
		o.put(t, s)
		for i := range byte(connections) {
			must(testkit.RoundTrip(t, c.client, "udp", s.Frontend.String(), bytes.Repeat([]byte{'A' + i}, 4000)))(t)
		}
		testkit.Eventually(t, 20*time.Second, func() error {
			mu.Lock()
			defer mu.Unlock()
			kept := 0
			for letter := byte('A'); letter < 'A'+connections; letter++ {
				came, left := seen["outer"][letter], seen["wire"][letter]
				if len(came) < 3 || len(left) != len(came) || len(slices.Compact(slices.Clone(came))) != 1 ||
					len(slices.Compact(slices.Clone(left))) != 1 {
					return fmt.Errorf("datagram %c: fragments %x became %x, want one identification each", letter, came, left)
				}
				if left[0] == came[0] {
					kept++
				}
			}
			if kept > 1 { // one in 65,536 may
				return fmt.Errorf("%d of %d datagrams left with the identification that they came with", kept, connections)
			}
			return nil
		})
	})
	wantNoDrops(t, c.d)
}
