// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"

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
			peer := testkit.Must(testkit.RoundTrip(t, p.from(f), row.network, server.String(), payload))(t)
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
		t.Run(row.name, func(t *testing.T) { testkit.Succeed(t, testkit.Ping(p.from(f), p.target(f, family), row.size)) })
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
			testkit.Succeed(t, mode.Setup(f.network))
			if mode.Traits().Needs == NeedsOpenVSwitch {
				datapath := testkit.Must(f.network.ovsDatapath())(t)
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
	testkit.Must(testkit.RoundTrip(t, f.pods[0].Namespace, "tcp", server.String(), make([]byte, bulk)))(t)
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
				testkit.Succeed(t, mode.Setup(f.network))
				server, client := f.newPod(t, 0), f.newPod(t, 1)
				f.create(t, server)
				addr := testkit.Echo(t, server.Namespace, "tcp", netip.AddrPortFrom(server.Addresses[index(family)], 0).String())
				f.create(t, client)
				conn := testkit.Must(testkit.Dial(client.Namespace, "tcp", addr.String()))(t)
				defer conn.Close()
				testkit.Must(io.ReadFull(conn, make([]byte, 1)))(t)
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
	raw := testkit.Must(conn.SyscallConn())(t)
	var info *unix.TCPInfo
	var err error
	testkit.Succeed(t, raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) }))
	testkit.Succeed(t, err)
	return info.Total_retrans
}
