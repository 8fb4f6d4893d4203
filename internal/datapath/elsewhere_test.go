// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// elsewhereCase is a service for clients outside with a backend on another node, in a family and a protocol.
type elsewhereCase struct {
	nodes
	service.Service
	client     netip.Addr
	far, near  netip.AddrPort // backends on the other node and on this one
	clientPort uint16         // of the last association that was made of packets
}

// eachElsewhere runs a test with services whose backends on another node answer this one, and with those of direct
// server return, of all protocols and families.
func eachElsewhere(t *testing.T, test func(*testing.T, *elsewhereCase)) {
	n := newNodes(t)
	if !hasSCTP() {
		testkit.NeedsOther(t)
	}
	for i, f := range [][4]string{{outer4, farPod4, podA4, "203.0.113.132"}, {outer6, farPod6, podA6, "2001:db8:7::132"}} {
		addr := func(i int) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr(f[i]), 5201) }
		for _, dsr := range []service.DSR{service.NoDSR, service.IPIP} {
			for _, protocol := range []service.Protocol{service.TCP, service.UDP, service.SCTP} {
				t.Run(fmt.Sprintf("ipv%d/dsr %s/%s", 4+2*i, dsr, protocol), func(t *testing.T) {
					// An address of its own: a connection of an earlier case would keep its path if a client got the same port.
					frontend := addr(3)
					if dsr == service.IPIP {
						frontend = netip.AddrPortFrom(frontend.Addr().Next(), frontend.Port())
					}
					c := &elsewhereCase{
						n, service.Service{Frontend: frontend, Protocol: protocol, External: true, DSR: dsr},
						addr(0).Addr(), addr(1), addr(2), 40000 + 100*uint16(dsr),
					}
					c.echo(t, n.pod, c.far)
					c.echo(t, n.pods[0], c.near)
					test(t, c)
				})
			}
		}
	}
}

// echo has a backend return what clients send.
func (c *elsewhereCase) echo(t *testing.T, ns *netns.Namespace, at netip.AddrPort) {
	t.Helper()
	switch {
	case c.Protocol != service.SCTP:
		testkit.Echo(t, ns, c.Protocol.String(), at.String())
	case hasSCTP():
		echoSCTP(t, ns, at)
	default:
		listenSCTP(t, ns, at)
	}
}

// configure stores the service on both nodes.
func (c *elsewhereCase) configure(t *testing.T, backends ...service.Backend) {
	t.Helper()
	c.Backends = backends
	for _, d := range []*Datapath{c.d, c.other} {
		s := c.Service
		if d == c.other && s.DSR == service.NoDSR {
			continue
		}
		putService(t, d, s)
	}
}

// served fails the test unless a client outside is served, by the backend on this node or on the other one.
func (c *elsewhereCase) served(t *testing.T, near bool) {
	t.Helper()
	before := settled(t, c.d)
	var err error
	if c.Protocol == service.SCTP {
		err = c.roundTripSCTP(c.nodes.client)
	} else {
		_, err = testkit.RoundTrip(t, c.nodes.client, c.Protocol.String(), c.Frontend.String(), []byte("elsewhere"))
	}
	diff := delta(t, c.d, before)
	if err != nil || (diff["redirect_routed"] == 0) != near {
		t.Errorf("the client is served: %v, counted %v; want near %t", err, diff, near)
	}
	failIf(t, (diff["encapsulated"] > 0) != (!near && c.DSR == service.IPIP), "counted %v", diff)
}

// dropped fails the test unless the first packet of a client is dropped for a reason.
func (c *elsewhereCase) dropped(t *testing.T, reason string) {
	t.Helper()
	before := counts(t, c.d)
	noError(t, tryOnce(c.nodes.client, c.Service))
	if got := delta(t, c.d, before); got[reason] == 0 || got["new_connection"] != 0 {
		t.Errorf("counted %v, want %s", got, reason)
	}
}

// roundTripSCTP sends the service a message from a namespace, and gets it back.
func (c *elsewhereCase) roundTripSCTP(ns *netns.Namespace) error {
	if hasSCTP() {
		fd, err := socketSCTP(ns, c.Frontend, unix.Connect)
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
	conn, err := rawSCTP(ns, c.Frontend.Addr())
	if err != nil {
		return err
	}
	defer conn.Close()
	c.clientPort++
	p := packet{src: netip.AddrPortFrom(c.Frontend.Addr(), c.clientPort), dst: c.Frontend, proto: protoSCTP}
	for _, chunk := range []uint8{chunkInit, chunkCookieEcho, chunkData} {
		p.flags = chunk
		got, err := exchangeSCTP(conn, p)
		if err != nil {
			return err
		}
		if !bytes.Equal(got[:4], []byte{p.transport()[2], p.transport()[3], p.transport()[0], p.transport()[1]}) {
			return fmt.Errorf("chunk %d: answer from and to ports %x", chunk, got[:4])
		}
	}
	return nil
}

// TestSettingsElsewhere gives services whose backend is on another node source ranges and a policy.
func TestSettingsElsewhere(t *testing.T) {
	eachElsewhere(t, func(t *testing.T, c *elsewhereCase) {
		far := service.Backend{Addr: c.far}
		c.configure(t, far)
		c.served(t, false)

		near, _ := c.client.Prefix(c.client.BitLen() - 8)
		c.SourceRanges = []netip.Prefix{near}
		c.configure(t, far)
		c.served(t, false)
		c.SourceRanges = []netip.Prefix{rangeOf(c.client.Next())}
		c.configure(t, far)
		c.dropped(t, "drop_source_range")

		c.SourceRanges = []netip.Prefix{rangeOf(c.client)}
		c.ExternalPolicy = service.Local
		c.configure(t, far)
		c.dropped(t, "drop_no_local_backend")
		c.configure(t, far, local(service.Backend{Addr: c.near}))
		for range 8 { // half of them would go elsewhere
			c.served(t, true)
		}
	})
}

// TestSCTPPortsElsewhere has two clients outside open associations from one port, which no node can change: with a
// service of several backends on other nodes, each gets another one. Direct server return leaves the client its
// address.
func TestSCTPPortsElsewhere(t *testing.T) {
	n := newNodes(t)
	second := map[bool]string{true: "172.16.2.3", false: "fd00:98::3"}
	n.run(t, "-n "+n.client.Name()+" addr add "+second[true]+"/24 dev outer\n-n "+n.client.Name()+" addr add "+
		second[false]+"/64 dev outer nodad")
	for _, f := range [][4]string{{outer4, farPod4, far4, "203.0.113.132"}, {outer6, farPod6, far6, "2001:db8:7::132"}} {
		addr := func(i int) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr(f[i]), 5201) }
		port := uint16(40000)
		open := func(s service.Service) map[string]uint64 {
			t.Helper()
			n.put(t, s)
			port++
			before := settled(t, n.d)
			for _, client := range []string{f[0], second[addr(0).Addr().Is4()]} {
				succeed(t, sendInit(n.client, netip.AddrPortFrom(netip.MustParseAddr(client), port), s.Frontend))
			}
			settled(t, n.d)
			return delta(t, n.d, before)
		}
		s := service.Service{Frontend: addr(3), Protocol: service.SCTP, External: true,
			Backends: service.Backends(addr(1), addr(2))}
		for range 20 {
			if got := open(s); got["new_connection"] != 2 || got["drop_port_exhausted"] != 0 {
				t.Errorf("%s, two backends: counted %v", s.Frontend, got)
			}
		}
		s.Backends = s.Backends[:1]
		if got := open(s); got["new_connection"] != 1 || got["drop_port_exhausted"] == 0 {
			t.Errorf("%s, one backend: counted %v", s.Frontend, got)
		}
		s.DSR = service.IPIP
		if got := open(s); got["new_connection"] != 2 || got["drop_port_exhausted"] != 0 {
			t.Errorf("%s, one backend that answers itself: counted %v", s.Frontend, got)
		}
	}
}

// sendInit sends the first packet of an association from an address and a port.
func sendInit(ns *netns.Namespace, from, to netip.AddrPort) error {
	return ns.Do(func() error {
		conn, err := net.DialIP("ip:132", &net.IPAddr{IP: from.Addr().AsSlice()}, &net.IPAddr{IP: to.Addr().AsSlice()})
		if err != nil {
			return err
		}
		p := packet{src: from, dst: to, proto: protoSCTP, flags: chunkInit}
		_, err = conn.Write(p.transport())
		return errors.Join(err, conn.Close())
	})
}

// TestDSRPathMTU has a router on the client's side tell the service, which the first node has, that the way is narrow.
// The backend, on the second node, learns it.
func TestDSRPathMTU(t *testing.T) {
	n := newNodes(t)
	const mtu = 1300
	eachOutside(t, func(t *testing.T, o outsideCase) {
		if o.protocol != service.UDP { // whose errors need no sequence number
			return
		}
		v4 := netip.MustParseAddr(o.gate).Is4()
		pod := map[bool]string{true: farPod4, false: farPod6}[v4]
		backend := testkit.Echo(t, n.pod, "udp", net.JoinHostPort(pod, "0"))
		s := o.service(backend)
		s.DSR = service.IPIP
		for _, d := range []*Datapath{n.d, n.other} {
			putService(t, d, s)
		}
		conn := must(testkit.Dial(n.client, "udp", s.Frontend.String()))(t)
		defer func() { _ = conn.Close() }()
		succeed(t, ask(conn, []byte("narrow?")))
		client := conn.LocalAddr().(*net.UDPAddr).AddrPort()
		answer := packet{src: s.Frontend, dst: netip.AddrPortFrom(client.Addr().Unmap(), client.Port()), proto: protoUDP,
			payload: strings.Repeat("x", 100)}
		message, network := tooBig(answer, mtu), map[bool]string{true: "ip4:icmp", false: "ip6:ipv6-icmp"}[v4]
		before, beforeOther := settled(t, n.d), settled(t, n.other)
		succeed(t, n.client.Do(func() error {
			raw, err := net.Dial(network, s.Frontend.Addr().String())
			if err != nil {
				return err
			}
			_, err = raw.Write(message)
			return errors.Join(err, raw.Close())
		}))
		testkit.Eventually(t, 5*time.Second, func() error {
			out, err := exec.CommandContext(t.Context(), "ip", "-n", filepath.Base(n.pod.Name()), "route", "get",
				o.client).CombinedOutput()
			if err != nil || !strings.Contains(string(out), fmt.Sprintf("mtu %d", mtu)) {
				return fmt.Errorf("the backend's route: %s, %v; counted %v and %v", out, err, delta(t, n.d, before),
					delta(t, n.other, beforeOther))
			}
			return nil
		})
	})
}

// tooBig returns an ICMP message that a packet is larger than an MTU.
func tooBig(about packet, mtu uint16) []byte {
	error4 := packet{src: about.dst, dst: about.src, proto: protoICMP, icmpType: 3, icmpCode: 4, quote: &about}
	if about.v6() {
		error4.proto, error4.icmpType, error4.icmpCode = protoICMPv6, 2, 0
	}
	message := error4.transport()
	binary.BigEndian.PutUint16(message[6:], mtu)
	binary.BigEndian.PutUint16(message[2:], 0)
	binary.BigEndian.PutUint16(message[2:], ^sum(message)) // of ICMPv6 the kernel makes it
	return message
}
