// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/ovs"
	"mustang/internal/testkit"
)

// etherHeader is how many bytes Ethernet adds to a packet.
const etherHeader = 14

// bulk is how many bytes a bulk transfer sends each way, and back.
const bulk = 1 << 20

// path is a way between two places that every link mode has to provide. A new
// row is tested in all modes, a new mode in all rows.
type path struct {
	name string
	// from and to name the namespaces.
	from, to func(f *fixture) *netns.Namespace
	// target is where the connection goes, source where the server sees it come
	// from, for family 4 or 6.
	target, source func(f *fixture, family int) netip.Addr
}

func paths() []path {
	pod := func(i int) func(*fixture) *netns.Namespace {
		return func(f *fixture) *netns.Namespace { return f.pods[i].Namespace }
	}
	podAddr := func(i int) func(*fixture, int) netip.Addr {
		return func(f *fixture, family int) netip.Addr { return f.pods[i].Addresses[index(family)] }
	}
	host := func(f *fixture) *netns.Namespace { return f.network.Host }
	gateway := func(f *fixture, family int) netip.Addr { return f.network.Gateways[index(family)].Addr() }
	return []path{
		{"pod to pod", pod(0), pod(1), podAddr(1), podAddr(0)},
		{"pod to itself", pod(0), pod(0), podAddr(0), podAddr(0)},
		{"pod to host", pod(0), host, gateway, podAddr(0)},
		{"host to pod", host, pod(0), podAddr(0), gateway},
	}
}

// index is that of a family's address in the fixture's lists.
func index(family int) int {
	if family == 6 {
		return 1
	}
	return 0
}

// mtuPayload is the most that a UDP datagram carries without fragments.
func mtuPayload(family int) int {
	if family == 6 {
		return DefaultMTU - 40 - 8
	}
	return DefaultMTU - 20 - 8
}

// TestConformance sends real traffic on each path of each mode. That a link can
// be deleted and created again is for TestNothingLeft.
func TestConformance(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode Mode) {
		f := newFixture(t, mode, 2)
		for _, p := range paths() {
			for _, family := range []int{4, 6} {
				t.Run(fmt.Sprintf("%s/IPv%d", p.name, family), func(t *testing.T) { testPath(t, f, p, family) })
			}
		}
	})
}

func testPath(t *testing.T, f *fixture, p path, family int) {
	addr := netip.AddrPortFrom(p.target(f, family), 0).String()
	rows := []struct {
		name, network string
		size          int
	}{
		{"TCP", "tcp", 100},
		{"TCP bulk", "tcp", bulk},
		{"UDP", "udp", 100},
		{"UDP of MTU size", "udp", mtuPayload(family)},
		{"UDP in fragments", "udp", 8000},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			payload := make([]byte, row.size)
			_, _ = rand.Read(payload)
			server := testkit.Echo(t, p.to(f), row.network, addr)
			peer, err := testkit.RoundTrip(t, p.from(f), row.network, server.String(), payload)
			if err != nil {
				t.Fatal(err)
			}
			if want := p.source(f, family); peer.Addr() != want {
				t.Errorf("the server sees the client as %v, not %v", peer.Addr(), want)
			}
		})
	}
	for _, row := range []struct {
		name string
		size int
	}{
		{"ICMP echo", 56},
		{"ICMP echo of MTU size", mtuPayload(family)},
	} {
		t.Run(row.name, func(t *testing.T) { ping(t, p.from(f), p.target(f, family), row.size) })
	}
}

// TestSegments counts on the pod's device how large the packets of a bulk
// transfer are: larger than the MTU wherever the devices can leave it to the last
// one to cut them, and never where they can't.
func TestSegments(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode Mode) {
		for _, large := range []bool{true, false} {
			if !large && mode.Traits().Needs != NeedsRelay {
				continue // that is up to the relay
			}
			f := newHost(t, mode)
			f.large = large
			if err := mode.Setup(f.network); err != nil {
				t.Fatal(err)
			}
			if mode.Traits().Needs == NeedsOpenVSwitch {
				datapath, err := f.network.ovsDatapath()
				if err != nil {
					t.Fatal(err)
				}
				large = datapath == ovs.Kernel
			}
			f.create(t, f.newPod(t, 0))
			f.create(t, f.newPod(t, 1))
			for _, addr := range f.pods[1].Addresses {
				if got := meanReceived(t, f, addr); (got > DefaultMTU+etherHeader) != large {
					t.Errorf("packets to %v have %d bytes on average; larger than the MTU: wanted %t", addr, got, large)
				}
			}
		}
	})
}

// meanReceived is how many bytes the packets of a bulk transfer to a pod have on
// average when they reach its device.
func meanReceived(t *testing.T, f *fixture, addr netip.Addr) uint64 {
	t.Helper()
	before := findDevice(t, f.pods[1].Namespace, f.links[1].IfName)
	server := testkit.Echo(t, f.pods[1].Namespace, "tcp", netip.AddrPortFrom(addr, 0).String())
	if _, err := testkit.RoundTrip(t, f.pods[0].Namespace, "tcp", server.String(), make([]byte, bulk)); err != nil {
		t.Fatal(err)
	}
	after := findDevice(t, f.pods[1].Namespace, f.links[1].IfName)
	return (after.RxBytes - before.RxBytes) / (after.RxPackets - before.RxPackets)
}

// TestFirstConnect connects as soon as Create has returned. Nothing that is sent
// may be lost: the first segment that is sent again would come a second later.
func TestFirstConnect(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode Mode) {
		for _, family := range []int{4, 6} {
			t.Run(fmt.Sprintf("IPv%d", family), func(t *testing.T) {
				f := newHost(t, mode)
				if err := mode.Setup(f.network); err != nil {
					t.Fatal(err)
				}
				server, client := f.newPod(t, 0), f.newPod(t, 1)
				f.create(t, server)
				addr := testkit.Echo(t, server.Namespace, "tcp", netip.AddrPortFrom(server.Addresses[index(family)], 0).String())
				f.create(t, client)
				conn, err := testkit.Dial(client.Namespace, "tcp", addr.String())
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
					t.Fatal(err)
				}
				if again := retransmissions(t, conn.(*net.TCPConn)); again != 0 {
					t.Errorf("%d segments were sent again", again)
				}
			})
		}
	})
}

// retransmissions is how many segments a connection has sent again.
func retransmissions(t *testing.T, conn *net.TCPConn) (count uint32) {
	t.Helper()
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var info *unix.TCPInfo
	err = errors.Join(raw.Control(func(fd uintptr) {
		info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	}), err)
	if err != nil {
		t.Fatal(err)
	}
	return info.Total_retrans
}

// pingTimeout is how long an echo may take.
const pingTimeout = 3 * time.Second

// ping sends an ICMP echo request with that many bytes of data from inside ns,
// not to be fragmented, and waits for the reply.
func ping(t *testing.T, ns *netns.Namespace, addr netip.Addr, size int) {
	t.Helper()
	data := make([]byte, size)
	_, _ = rand.Read(data)
	request := icmp.Message{Type: ipv4.ICMPTypeEcho, Body: &icmp.Echo{ID: 1 + int(data[0]), Seq: 1, Data: data}}
	network, protocol, reply := "ip4:icmp", 1, icmp.Type(ipv4.ICMPTypeEchoReply)
	if addr.Is6() {
		request.Type = ipv6.ICMPTypeEchoRequest
		network, protocol, reply = "ip6:ipv6-icmp", 58, ipv6.ICMPTypeEchoReply
	}
	packet, err := request.Marshal(nil) // in IPv6, the kernel adds the checksum
	if err != nil {
		t.Fatal(err)
	}
	conn := dialICMP(t, ns, network, addr)
	if _, err := conn.Write(packet); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(pingTimeout)); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 1<<16)
	for {
		n, _, err := conn.ReadFromIP(buffer) // unlike Read, without the IPv4 header
		if err != nil {
			t.Fatalf("no reply from %v: %v", addr, err)
		}
		message, err := icmp.ParseMessage(protocol, buffer[:n])
		if err != nil {
			t.Fatal(err)
		}
		// A pod that pings itself sees its request too.
		if echo, ok := message.Body.(*icmp.Echo); ok && message.Type == reply {
			if !bytes.Equal(echo.Data, data) {
				t.Errorf("sent %d bytes, received %d others", len(data), len(echo.Data))
			}
			return
		}
	}
}

// dialICMP opens a raw socket inside ns that exchanges ICMP messages with addr
// only, and sends no fragments.
func dialICMP(t *testing.T, ns *netns.Namespace, network string, addr netip.Addr) *net.IPConn {
	t.Helper()
	var conn *net.IPConn
	err := ns.Do(func() (err error) {
		conn, err = net.DialIP(network, nil, &net.IPAddr{IP: addr.AsSlice()})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	level, option, value := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO
	if addr.Is6() {
		level, option, value = unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO
	}
	err = errors.Join(raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, value) }), err)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}
