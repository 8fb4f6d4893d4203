// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

func switching(a, b *Device) func(context.Context) error {
	return func(ctx context.Context) error { return Switch(ctx, a, b) }
}

// pair is two namespaces that are joined by a Switch.
type pair struct {
	leftSpace, rightSpace *netns.Namespace
	left, right           *Device
	stop                  func() error
}

func newPair(t testing.TB, options Options) pair {
	t.Helper()
	p := pair{leftSpace: testkit.Namespace(t, "left"), rightSpace: testkit.Namespace(t, "right")}
	options.Name, options.Addresses = "left", leftAddresses
	p.left = open(t, p.leftSpace, options)
	options.Name, options.Addresses = "right", rightAddresses
	p.right = open(t, p.rightSpace, options)
	p.stop = background(t, switching(p.left, p.right))
	return p
}

// TestSwitch sends all kinds of traffic through a switch, both ways.
func TestSwitch(t *testing.T) {
	for _, options := range []Options{
		{Kind: TUN}, {Kind: TUN, Offload: true}, {Kind: TAP}, {Kind: TAP, Offload: true},
		{Kind: TUN, MTU: 9000, Offload: true}, {Kind: TUN, MTU: 65535},
	} {
		t.Run(fmt.Sprintf("%s/offload=%t/mtu=%d", options.Kind, options.Offload, options.MTU), func(t *testing.T) {
			p := newPair(t, options)
			for i, ends := range []struct {
				client, server *netns.Namespace
				addresses      []string
			}{
				{p.leftSpace, p.rightSpace, []string{"10.9.0.2", "fd00:9::2"}},
				{p.rightSpace, p.leftSpace, []string{"10.9.0.1", "fd00:9::1"}},
			} {
				for _, address := range ends.addresses {
					header := 28 // of IPv4 and UDP
					listen := address + ":0"
					if strings.Contains(address, ":") {
						header, listen = 48, "["+address+"]:0"
					}
					tcp := testkit.Echo(t, ends.server, "tcp", listen)
					_, err := testkit.RoundTrip(t, ends.client, "tcp", tcp.String(), payload(1<<20))
					testkit.Check(t, err == nil, "way %d: %v", i, err)
					udp := testkit.Echo(t, ends.server, "udp", listen)
					for _, size := range []int{1, min(p.left.mtu-header, 65507), 20000} { // the last in fragments
						_, err := testkit.RoundTrip(t, ends.client, "udp", udp.String(), payload(size))
						testkit.Check(t, err == nil, "way %d: %d bytes: %v", i, size, err)
					}
					err = testkit.Ping(ends.client, netip.MustParseAddr(address), 1000)
					testkit.Check(t, err == nil, "way %d: %v", i, err)
				}
			}
			testkit.Succeed(t, p.stop())
			left, right := countersOf(p.left), countersOf(p.right)
			testkit.Check(t, left.ReadPackets == right.WrittenPackets && left.ReadBytes == right.WrittenBytes &&
				right.ReadPackets == left.WrittenPackets && left.Dropped+right.Dropped == 0 && left.ReadBytes >= 4<<20,
				"counters: left %+v, right %+v", left, right)
			if mean := left.ReadBytes / left.ReadPackets; mean > uint64(p.left.mtu+sizeEthernet) {
				t.Errorf("packets of %d bytes are counted, more than the MTU %d", mean, p.left.mtu)
			}
		})
	}
}

// TestSwitchWhole shows that offload is used: fewer reads than packets.
func TestSwitchWhole(t *testing.T) {
	for _, offload := range []bool{false, true} {
		p := newPair(t, Options{Offload: offload})
		server := testkit.Echo(t, p.rightSpace, "tcp", "10.9.0.2:0")
		testkit.Must(testkit.RoundTrip(t, p.leftSpace, "tcp", server.String(), payload(10<<20)))(t)
		device := testkit.Must(rtnl.In(p.leftSpace).Device("left"))(t)
		counted := countersOf(p.left).ReadPackets
		if whole := device.TxPackets*2 < counted; whole != offload {
			t.Errorf("offload %t: %d packets on a wire, %d as the kernel counts", offload, counted, device.TxPackets)
		}
	}
}

// TestSwitchUnplugged sets a device down, which loses packets, and up again.
func TestSwitchUnplugged(t *testing.T) {
	p := newPair(t, Options{})
	ip(t, p.rightSpace, "link set right down")
	udp := testkit.Must(testkit.Dial(p.leftSpace, "udp", "10.9.0.2:9"))(t)
	defer udp.Close()
	testkit.Eventually(t, 5*time.Second, func() error {
		if _, err := udp.Write([]byte("lost")); err != nil {
			return err
		}
		if countersOf(p.right).Dropped == 0 {
			return errors.New("no packet was dropped")
		}
		return nil
	})
	ip(t, p.rightSpace, "link set right up")
	testkit.Succeed(t, testkit.Ping(p.leftSpace, rightAddresses[0].Addr(), 100))
}

// TestSwitchDeviceGone takes a device away. (Its namespace can't go before it.)
func TestSwitchDeviceGone(t *testing.T) {
	for name, remove := range map[string]func(*testing.T, pair){
		"deleted": func(t *testing.T, p pair) { ip(t, p.rightSpace, "link delete right") },
		"closed":  func(_ *testing.T, p pair) { _ = p.right.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, Options{})
			done := make(chan error, 1)
			testkit.Succeed(t, p.stop())
			go func() { done <- Switch(context.Background(), p.left, p.right) }()
			testkit.Succeed(t, testkit.Ping(p.leftSpace, rightAddresses[0].Addr(), 100))
			remove(t, p)
			wantGone(t, done, `"right"`)
		})
	}
}

func TestSwitchRefuses(t *testing.T) {
	ns := testkit.Namespace(t, "refuse")
	plain := open(t, ns, Options{Name: "plain"})
	for _, test := range []struct {
		a, b *Device
		want string
	}{
		{plain, plain, "want two devices"},
		{plain, open(t, ns, Options{Name: "offload", Offload: true}), "offload"},
		{plain, open(t, ns, Options{Name: "tap", Kind: TAP}), "different kinds"},
	} {
		err := Switch(context.Background(), test.a, test.b)
		testkit.Check(t, err != nil && strings.Contains(err.Error(), test.want) && strings.Contains(err.Error(), `"plain"`),
			"error %v, want one with %q", err, test.want)
	}
}

func TestMeasure(t *testing.T) {
	const none, tcp4, udp = unix.VIRTIO_NET_HDR_GSO_NONE, unix.VIRTIO_NET_HDR_GSO_TCPV4, unix.VIRTIO_NET_HDR_GSO_UDP_L4
	frame := func(kind, segment, size int) []byte {
		frame := make([]byte, headerSize+size)
		frame[1] = byte(kind)
		frame[4], frame[5] = byte(segment), byte(segment>>8) // little endian, as all machines that we test on
		frame[6] = sizeIPv4
		if size > sizeIPv4+12 {
			frame[headerSize+sizeIPv4+12] = 8 << 4 // a TCP header of 32 bytes
		}
		return frame
	}
	for _, test := range []struct {
		offload        bool
		frame          []byte
		packets, bytes int
	}{
		{false, make([]byte, 1500), 1, 1500},
		{true, frame(none, 0, 1500), 1, 1500},
		{true, frame(tcp4, 1448, 52+1448), 1, 1500},
		{true, frame(tcp4, 1448, 52+1449), 2, 1501},
		{true, frame(tcp4, 1448, 52+10*1448), 10, 52 + 10*1448},
		{true, frame(udp, 1000, 28+3000), 3, 3028},
		{true, frame(tcp4, 0, 1500), 1, 1500},
		{true, frame(tcp4, 1448, 10), 1, 10},
		{true, make([]byte, 5), 1, 0},
	} {
		packets, bytes := (&Device{offload: test.offload}).measure(test.frame)
		testkit.Check(t, packets == test.packets && bytes == test.bytes,
			"offload %t, header % x: %d packets of %d bytes, want %d of %d", test.offload, test.frame[:5], packets, bytes,
			test.packets, test.bytes)
	}
}
