// SPDX-License-Identifier: Apache-2.0

package nodenet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

const (
	ethernet = 14
	ect0, ce = 2, 3
	ourClass = 0x28 | ect0 // AF11 and ECT(0)
)

// tap captures what crosses a device.
type tap struct {
	t      testing.TB
	socket int
}

func newTap(t testing.TB, ns *netns.Namespace, device string) *tap {
	t.Helper()
	link := testkit.Must(rtnl.In(ns).Device(device))(t)
	p := &tap{t: t}
	testkit.Succeed(t, ns.Do(func() (err error) {
		all := int(binary.NativeEndian.Uint16([]byte{unix.ETH_P_ALL >> 8, unix.ETH_P_ALL}))
		if p.socket, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK, all); err != nil {
			return err
		}
		t.Cleanup(func() { _ = unix.Close(p.socket) })
		if err := unix.SetsockoptInt(p.socket, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 32<<20); err != nil {
			return err
		}
		return unix.Bind(p.socket, &unix.SockaddrLinklayer{Protocol: uint16(all), Ifindex: link.Index})
	}))
	return p
}

// all returns the frames since the last call that are IP packets.
func (p *tap) all() (all []frame) {
	buffer := make([]byte, 1<<17)
	for {
		n, _, err := unix.Recvfrom(p.socket, buffer, 0)
		if err != nil {
			return all
		}
		if f := parseFrame(slices.Clone(buffer[:n])); f.inner.valid {
			all = append(all, f)
		}
	}
}

// frames returns those of all whose packets, without the tunnel, are from an address.
func (p *tap) frames(from netip.Addr) []frame {
	return slices.DeleteFunc(p.all(), func(f frame) bool { return f.inner.from != from })
}

func (p *tap) send(f frame) {
	p.t.Helper()
	testkit.Must(unix.Write(p.socket, f.bytes))(p.t)
}

// frame is an Ethernet frame. Without a tunnel, outer is not valid.
type frame struct {
	bytes        []byte
	outer, inner ip
}

// ip is an IP packet in a frame, at an offset.
type ip struct {
	valid          bool
	at, l4         int
	v6             bool
	ttl, class     int
	proto          int
	from           netip.Addr
	checked, whole bool // the checksums are right, and the length is that of the frame
}

// pick returns the offset for the packet's family.
func (p ip) pick(v4, v6 int) int {
	if p.v6 {
		return v6
	}
	return v4
}

func parseFrame(b []byte) (f frame) {
	f.bytes = b
	if f.inner = parseIP(b, ethernet); f.inner.valid && f.inner.proto == unix.IPPROTO_UDP &&
		len(b) > f.inner.l4+16+ethernet && binary.BigEndian.Uint16(b[f.inner.l4+2:]) == DefaultPort {
		f.outer = f.inner
		f.inner = parseIP(b, f.outer.l4+16+ethernet)
	}
	return f
}

func parseIP(b []byte, at int) (p ip) {
	p.at = at
	if h := b[min(at, len(b)):]; len(h) > 40 && h[0]>>4 == 6 {
		p.valid, p.v6, p.l4, p.ttl, p.proto = true, true, at+40, int(h[7]), int(h[6])
		p.class = int(binary.BigEndian.Uint16(h) >> 4 & 0xff)
		p.from, _ = netip.AddrFromSlice(h[8:24])
		p.whole = int(binary.BigEndian.Uint16(h[4:])) == len(h)-40
		p.checked = sum(h[8:40], h[40:], p.proto) == 0xffff
	} else if len(h) > 28 && h[0] == 0x45 {
		p.valid, p.l4, p.ttl, p.proto, p.class = true, at+20, int(h[8]), int(h[9]), int(h[1])
		p.from, _ = netip.AddrFromSlice(h[12:16])
		p.whole = int(binary.BigEndian.Uint16(h[2:])) == len(h)
		p.checked = sum(h[:20], nil, 0) == 0xffff && sum(h[12:20], h[20:], p.proto) == 0xffff
	}
	return p
}

// sum is the Internet checksum over a pseudo header and a payload.
func sum(head, payload []byte, proto int) uint16 {
	total := uint32(len(payload) + proto)
	for _, part := range [][]byte{head, payload} {
		for i := 0; i < len(part); i += 2 {
			total += uint32(part[i]) << 8
			if i+1 < len(part) {
				total += uint32(part[i+1])
			}
		}
	}
	for total > 0xffff {
		total = total&0xffff + total>>16
	}
	return uint16(total)
}

// converse exchanges datagrams and streams with ourClass, and returns the datagrams' payload.
func (o *overlay) converse(family int, networks ...string) string {
	o.t.Helper()
	from, to := o.nodes[0], o.nodes[1]
	const payload = "a datagram with a class"
	for _, network := range networks {
		server := testkit.Echo(o.t, to.pod, network, netip.AddrPortFrom(to.pods[family], 0).String())
		c := testkit.Must(testkit.Dial(from.pod, network, server.String()))(o.t)
		raw := testkit.Must(c.(syscall.Conn).SyscallConn())(o.t)
		o.must(raw.Control(func(fd uintptr) {
			if family == 1 {
				o.must(unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_TCLASS, ourClass))
			} else {
				o.must(unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TOS, ourClass))
			}
		}))
		o.must(c.SetDeadline(time.Now().Add(time.Minute)))
		text := []byte(payload)
		if network == "tcp" {
			text = make([]byte, 100_000)
		}
		testkit.Must(c.Write(text))(o.t)
		for n := 0; n < len(text); {
			n += testkit.Must(c.Read(make([]byte, 1<<16)))(o.t)
		}
		o.must(c.Close())
	}
	return payload
}

// TestRemoteWire reads what the programs send on a wire without offloads, and what pods get: the same as from the
// kernel.
func TestRemoteWire(t *testing.T) {
	testkit.RequireTool(t, "ethtool")
	eachWay(t, func(t *testing.T, o *overlay, family int) {
		from, to := o.nodes[0], o.nodes[1]
		for _, n := range o.nodes {
			o.run(n.ns, "ethtool -K eth0 tx off")
		}
		wire, pod := newTap(t, o.wire, "port1"), newTap(t, to.pod, "eth0")
		got, ports := map[bool]map[string]bool{}, map[bool]uint16{}
		for _, on := range []bool{true, false} {
			ways := testkit.Must(o.datapaths[0].Remotes().List())(t)
			if !on {
				ways = nil
				for _, d := range o.datapaths {
					testkit.Must(d.Remotes().Apply(t.Context(), nil))(t)
				}
			}
			before := o.counts(0)
			o.converse(family, "udp", "tcp")
			got[on] = map[string]bool{}
			for _, f := range pod.frames(from.pods[family]) {
				got[on][fmt.Sprintf("protocol %d, TTL %d, class %#x", f.inner.proto, f.inner.ttl, f.inner.class)] = true
			}
			sent := wire.frames(from.pods[family])
			testkit.Check(t, len(sent) > 70, "%d frames on the wire", len(sent))
			for _, f := range sent {
				if problem := f.check(o.nodes[0].Addresses[0]); problem != "" && on {
					t.Errorf("%s: %x", problem, f.bytes[:min(len(f.bytes), 120)])
					break
				}
			}
			now := o.counts(0)
			testkit.Check(t, on == (now.sent > before.sent) && on == (now.forwarded == before.forwarded),
				"programs %v, ways %v: before %v, now %v", on, ways, before, now)
			if sent[0].outer.valid {
				ports[on] = o.tunnelPort(wire, family)
				pod.all()
			}
		}
		testkit.Check(t, len(got[true]) >= 2 && fmt.Sprint(got[true]) == fmt.Sprint(got[false]),
			"pods get %v from programs, %v from the kernel", got[true], got[false])
		testkit.Check(t, ports[true] == ports[false], "source ports of the tunnel: %v", ports)
		o.apply()
	})
}

// tunnelPort sends a datagram of a socket without a peer, so that the kernel has not hashed its flow. It returns the
// source port of the tunnel.
func (o *overlay) tunnelPort(wire *tap, family int) (port uint16) {
	o.t.Helper()
	from, to := o.nodes[0], net.UDPAddrFromAddrPort(netip.AddrPortFrom(o.nodes[1].pods[family], 9))
	o.must(from.pod.Do(func() error {
		c, err := net.ListenPacket("udp", netip.AddrPortFrom(from.pods[family], 7001).String())
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.WriteTo([]byte("a datagram"), to)
		return err
	}))
	testkit.Eventually(o.t, 10*time.Second, func() error {
		for _, f := range wire.frames(from.pods[family]) {
			if f.outer.valid && f.inner.proto == unix.IPPROTO_UDP {
				port = binary.BigEndian.Uint16(f.bytes[f.outer.l4:])
				return nil
			}
		}
		return errors.New("no datagram in the tunnel")
	})
	return port
}

// check returns what is wrong with a frame of a node.
func (f frame) check(node netip.Addr) string {
	switch {
	case len(f.bytes) > ethernet+1500:
		return fmt.Sprintf("%d bytes on a wire of 1500", len(f.bytes))
	case !f.inner.checked || !f.inner.whole:
		return "wrong checksum or length of the pod's packet"
	case f.inner.ttl != 63:
		return fmt.Sprintf("TTL %d of a packet that has crossed a host", f.inner.ttl)
	case !f.outer.valid:
		return ""
	case f.outer.from != node || f.outer.ttl != 64 || !f.outer.whole:
		return fmt.Sprintf("tunnel %+v", f.outer)
	case f.outer.class != f.inner.class&3:
		return fmt.Sprintf("class %#x around %#x", f.outer.class, f.inner.class)
	case !f.outer.v6 && sum(f.bytes[f.outer.at:f.outer.l4], nil, 0) != 0xffff:
		return "wrong header checksum of the tunnel"
	case binary.BigEndian.Uint16(f.bytes[f.outer.l4+6:]) != 0:
		return "UDP checksum of the tunnel"
	case int(binary.BigEndian.Uint16(f.bytes[f.outer.l4+4:])) != len(f.bytes)-f.outer.l4:
		return "wrong length of UDP"
	}
	return ""
}

// change changes a frame of the tunnel.
type change struct {
	what      string
	do        func(b []byte, f frame)
	fast      bool // whether the program delivers it
	delivered bool // whether anybody does
	class     int  // what the pod gets then
}

func setClass(b []byte, p ip, class int) {
	if p.v6 {
		b[p.at], b[p.at+1] = 0x60|byte(class>>4), byte(class<<4)|b[p.at+1]&0xf
	} else {
		b[p.at+1] = byte(class)
	}
}

// fixChecksums corrects all checksums of a datagram in the tunnel but that of the tunnel's UDP.
func fixChecksums(b []byte, f frame) {
	for _, p := range []ip{f.outer, f.inner} {
		if !p.v6 {
			put16(b[p.at+10:], 0)
			put16(b[p.at+10:], ^sum(b[p.at:p.l4], nil, 0))
		}
	}
	head := b[f.inner.at+12 : f.inner.l4]
	if f.inner.v6 {
		head = b[f.inner.at+8 : f.inner.l4]
	}
	put16(b[f.inner.l4+6:], 0)
	put16(b[f.inner.l4+6:], ^sum(head, b[f.inner.l4:], unix.IPPROTO_UDP))
}

func put16(b []byte, value uint16) { binary.BigEndian.PutUint16(b, value) }

func changes() []change {
	fast := change{fast: true, delivered: true, class: ourClass}
	kernel := change{delivered: true, class: ourClass}
	var none change
	with := func(c change, what string, do func(b []byte, f frame)) change {
		c.what, c.do = what, do
		return c
	}
	marked := change{fast: true, delivered: true, class: ourClass | ce}
	return []change{
		with(fast, "as it is", func([]byte, frame) {}),
		with(marked, "congestion on the way", func(b []byte, f frame) { setClass(b, f.outer, ce) }),
		with(none, "congestion, of a packet that cannot have it", func(b []byte, f frame) {
			setClass(b, f.outer, ce)
			setClass(b, f.inner, 0)
		}),
		with(kernel, "ECN that no router sets", func(b []byte, f frame) { setClass(b, f.outer, 0) }),
		with(none, "from another address", func(b []byte, f frame) { b[f.outer.at+f.outer.pick(15, 23)] = 99 }),
		with(kernel, "from no pod of the node", func(b []byte, f frame) {
			b[f.inner.at+f.inner.pick(14, 13)] += 7
		}),
		with(none, "of another network", func(b []byte, f frame) { b[f.outer.l4+12] ^= 1 }),
		with(none, "with other flags", func(b []byte, f frame) { b[f.outer.l4+8] = 0 }),
		with(fast, "with a checksum that nobody verifies", func(b []byte, f frame) { b[f.outer.l4+6] = 1 }),
		with(none, "at the end of its TTL", func(b []byte, f frame) { b[f.inner.at+f.inner.pick(8, 7)] = 1 }),
		with(none, "to a MAC address of nobody", func(b []byte, _ frame) { b[0] ^= 4 }),
		with(none, "to no pod", func(b []byte, f frame) { b[f.inner.l4-1] ^= 0x55 }),
	}
}

// TestRemoteFrames changes a frame of the tunnel on the wire. The program delivers what is right, the kernel has the
// rest.
func TestRemoteFrames(t *testing.T) {
	testkit.RequireTool(t, "ethtool")
	eachWay(t, func(t *testing.T, o *overlay, family int) {
		from, to := o.nodes[0], o.nodes[1]
		if !testkit.Must(o.datapaths[0].Remotes().List())(t)[0].Node.IsValid() {
			return // no tunnel
		}
		o.run(from.ns, "ethtool -K eth0 tx off")
		wire, inject, pod := newTap(t, o.wire, "port1"), newTap(t, o.wire, "port2"), newTap(t, to.pod, "eth0")
		payload := o.converse(family, "udp")
		frames := wire.frames(from.pods[family])
		far := testkit.Must(rtnl.In(to.ns).Device("eth0"))(t)
		i := slices.IndexFunc(frames, func(f frame) bool { return f.inner.proto == unix.IPPROTO_UDP })
		testkit.Require(t, i >= 0 && strings.HasSuffix(string(frames[i].bytes), payload), "no datagram in %d frames",
			len(frames))
		copy(frames[i].bytes, far.MAC) // a router may be between
		for n, c := range changes() {
			f := frame{bytes: slices.Clone(frames[i].bytes)}
			mark := byte('A' + n) // the last byte of the payload
			f.bytes[len(f.bytes)-1] = mark
			c.do(f.bytes, frames[i])
			fixChecksums(f.bytes, frames[i])
			pod.all()
			before := o.counts(1)
			inject.send(f)
			inject.send(frames[i]) // once it has arrived, the other one has or never will
			var got *frame
			testkit.Eventually(t, time.Minute, func() error {
				for _, g := range pod.all() {
					switch last := g.bytes[len(g.bytes)-1]; {
					case g.inner.from == to.pods[family] || g.inner.proto != unix.IPPROTO_UDP: // an answer
					case last == mark:
						got = &g
					case last == payload[len(payload)-1]:
						return nil
					}
				}
				return errors.New("the frame behind it has not arrived")
			})
			fast := o.counts(1).received - before.received - 1
			testkit.Check(t, (fast == 1) == c.fast, "%s: the program delivers %d", c.what, fast)
			switch {
			case !c.delivered:
				testkit.Check(t, got == nil, "%s: the pod gets %+v", c.what, got)
			case got == nil:
				t.Errorf("%s: the pod gets nothing", c.what)
			default:
				testkit.Check(t, got.inner.class == c.class && got.inner.checked, "%s: the pod gets %+v, want class %#x", c.what,
					got.inner, c.class)
			}
		}
	})
}
