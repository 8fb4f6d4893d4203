// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/ovs"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

const etherHeader = 14 // how many bytes Ethernet adds to a packet

const bulk = 1 << 20 // how many bytes a bulk transfer sends each way, and back

// path is a way between two places that every link mode has to provide. A new
// row is tested in all modes, a new mode in all rows.
type path struct {
	name string
	// from and to name the namespaces.
	from, to func(f *fixture) *netns.Namespace
	// target is where the connection goes, source where the server sees it come from, for family 4 or 6.
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
			want := p.source(f, family)
			testkit.Check(t, peer.Addr() == want, "the server sees the client as %v, not %v", peer.Addr(), want)
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

// TestSegments counts on the pod's device how large the packets of a bulk transfer are. They are larger than the MTU
// if the devices can leave cutting to the last one, and never otherwise.
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

// meanReceived is how many bytes the packets of a bulk transfer to a pod have on average when they reach its device.
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
				again := retransmissions(t, conn.(*net.TCPConn))
				testkit.Check(t, again == 0, "%d segments were sent again", again)
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
	testkit.Succeed(t, raw.Control(func(fd uintptr) {
		info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	}))
	testkit.Succeed(t, err)
	return info.Total_retrans
}

// testOVSAnswers sends an ARP request for its gateway from a pod. Only the switch may lead there.
func testOVSAnswers(t *testing.T, f *fixture, _ string) {
	f.create(t, f.newPod(t, 0))
	pod, link := f.pods[0], f.links[0]
	q := question{pod.Namespace, link.IfName, pod.Addresses[0], f.network.Gateways[0].Addr()}
	q.wantAnswer(t, link.NodeMAC)
}

// TestMacvlanAnswers sends an ARP request for the uplink's address from a neighbour of the host. Only the uplink may
// answer: packets to the host's own device differ from packets that reach the host through the uplink.
func TestMacvlanAnswers(t *testing.T) {
	f := newHostOf(t, "macvlan")
	address := netip.MustParsePrefix("192.0.2.1/24")
	testkit.Succeed(t, rtnl.In(f.network.Host).Configure(uplinkName, rtnl.DeviceConfig{Addresses: []netip.Prefix{address},
		Up: true}))
	testkit.Succeed(t, f.mode.Setup(f.network))
	q := question{f.network.Host, "wire", netip.MustParseAddr("192.0.2.9"), address.Addr()}
	fd, everyone := q.open(t)
	defer unix.Close(fd)
	// The device answers in turn: to the second request after the first.
	second := q
	second.target = f.network.Gateways[0].Addr()
	own, link := findDevice(t, q.ns, MacvlanHostDevice), findDevice(t, q.ns, q.device)
	testkit.Eventually(t, 10*time.Second, func() error {
		for _, q := range []question{q, second} {
			if err := unix.Sendto(fd, q.request(link.MAC), 0, everyone); err != nil {
				return err
			}
		}
		for {
			message := make([]byte, 128)
			n, _, err := unix.Recvfrom(fd, message, 0)
			if err != nil {
				return fmt.Errorf("ask for %v on %q: %w", second.target, q.device, err)
			}
			from := second.answerIn(message[:n])
			if from.String() == own.MAC.String() {
				return nil
			}
			from = q.answerIn(message[:n])
			testkit.Check(t, from.String() != own.MAC.String(), "%q answers for %v, which is the uplink's", own.Name, q.target)
		}
	})
}

// question is an ARP request for target, sent on a device with the address sender.
type question struct {
	ns             *netns.Namespace
	device         string
	sender, target netip.Addr
}

// wantAnswer repeats the request until the MAC address answers, and no other before.
func (q question) wantAnswer(t *testing.T, want net.HardwareAddr) {
	t.Helper()
	link := findDevice(t, q.ns, q.device)
	fd, everyone := q.open(t)
	defer unix.Close(fd)
	testkit.Eventually(t, 10*time.Second, func() error { // a switch may lose the first packets
		if err := unix.Sendto(fd, q.request(link.MAC), 0, everyone); err != nil {
			return err
		}
		for {
			mac, err := q.answer(fd)
			switch {
			case err != nil:
				return fmt.Errorf("ask for %v on %q: %w", q.target, q.device, err)
			case mac.String() == want.String():
				return nil
			case mac != nil:
				t.Errorf("%v answers for %v on %q, not only %v", mac, q.target, q.device, want)
			}
		}
	})
}

func (q question) open(t *testing.T) (fd int, everyone *unix.SockaddrLinklayer) {
	t.Helper()
	link := findDevice(t, q.ns, q.device)
	testkit.Succeed(t, q.ns.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		return err
	}))
	arp := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ARP))
	timeout := unix.NsecToTimeval(time.Second.Nanoseconds())
	testkit.Succeed(t, errors.Join(
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: arp, Ifindex: link.Index}),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout),
	))
	return fd, &unix.SockaddrLinklayer{
		Protocol: arp, Ifindex: link.Index, Halen: 6, Addr: [8]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
	}
}

// request is the message (RFC 826).
func (q question) request(mac net.HardwareAddr) []byte {
	message := []byte{0, unix.ARPHRD_ETHER, unix.ETH_P_IP >> 8, unix.ETH_P_IP & 0xff, 6, 4, 0, 1}
	message = append(append(message, mac...), q.sender.AsSlice()...)
	return append(append(message, make([]byte, 6)...), q.target.AsSlice()...)
}

func (q question) answer(fd int) (net.HardwareAddr, error) {
	message := make([]byte, 128)
	n, _, err := unix.Recvfrom(fd, message, 0)
	if err != nil {
		return nil, err
	}
	return q.answerIn(message[:n]), nil
}

func (q question) answerIn(message []byte) net.HardwareAddr {
	const reply, length = 2, 28
	if len(message) < length || message[7] != reply || [4]byte(message[14:18]) != q.target.As4() {
		return nil
	}
	return message[8:14]
}
