// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// echoing opens a device and runs Echo on it until the test ends.
func echoing(t *testing.T, offload bool) (ns *netns.Namespace, d *Device, stop func() error) {
	t.Helper()
	ns = testkit.Namespace(t, "echo")
	d = open(t, ns, Options{Name: "left", Addresses: leftAddresses, Offload: offload})
	return ns, d, background(t, func(ctx context.Context) error { return Echo(ctx, d, nil) })
}

// bothOffloads runs a test without and with offload.
func bothOffloads(t *testing.T, test func(t *testing.T, offload bool)) {
	for _, offload := range []bool{false, true} {
		t.Run(fmt.Sprintf("offload=%t", offload), func(t *testing.T) { test(t, offload) })
	}
}

func TestEchoICMP(t *testing.T) {
	bothOffloads(t, func(t *testing.T, offload bool) {
		ns, _, _ := echoing(t, offload)
		ip(t, ns, "route add 172.16.0.0/12 dev left")
		for _, to := range []string{"10.9.0.2", "10.9.0.200", "172.20.1.1", "fd00:9::2", "fd00:9::abcd:1"} {
			for _, size := range []int{0, 1, 56, 1400, 8000} { // the last in fragments
				testkit.Succeed(t, testkit.Ping(ns, netip.MustParseAddr(to), size))
			}
		}
	})
}

func TestEchoUDP(t *testing.T) {
	bothOffloads(t, func(t *testing.T, offload bool) {
		ns, _, _ := echoing(t, offload)
		for _, to := range []string{"10.9.0.2:1", "10.9.0.3:53", "10.9.0.200:65535", "[fd00:9::2]:7",
			"[fd00:9::abcd:1]:65535"} {
			conn := testkit.Must(testkit.Dial(ns, "udp", to))(t)
			defer conn.Close()
			for _, size := range []int{0, 1, 1472, 1473, 8000, 60000} {
				testkit.Succeed(t, conn.SetDeadline(time.Now().Add(30*time.Second)))
				testkit.Must(conn.Write(payload(size)))(t)
				buffer := make([]byte, 1<<16)
				n, err := conn.Read(buffer)
				testkit.Check(t, err == nil && string(buffer[:n]) == string(payload(size)),
					"%s: sent %d bytes, received %d (%v)", to, size, n, err)
			}
		}
	})
}

// TestEchoGarbage checks that Echo survives malformed packets.
func TestEchoGarbage(t *testing.T) {
	bothOffloads(t, func(t *testing.T, offload bool) {
		ns, d, _ := echoing(t, offload)
		var garbage [][]byte
		for _, test := range decodeTests {
			if test.packet != "" {
				garbage = append(garbage, hexBytes(t, test.packet))
			}
		}
		for size := range 80 {
			garbage = append(garbage, append([]byte{0x45}, payload(size)...), append([]byte{0x60}, payload(size)...))
		}
		inject(t, ns, "left", garbage...)
		testkit.Succeed(t, testkit.Ping(ns, rightAddresses[0].Addr(), 56))
		read := countersOf(d).ReadPackets
		testkit.Check(t, read >= uint64(len(garbage)), "%d packets were read, want %d and more", read, len(garbage))
	})
}

func TestEchoRefusesTAP(t *testing.T) {
	tap := open(t, testkit.Namespace(t, "echo"), Options{Name: "tap", Kind: TAP})
	err := Echo(context.Background(), tap, nil)
	testkit.Check(t, err != nil && strings.Contains(err.Error(), `"tap"`), "error %v, want one that names the device", err)
}

// patient reads with a deadline that moves on with each read.
type patient struct{ net.Conn }

func (p patient) Read(b []byte) (int, error) {
	if err := p.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		return 0, err
	}
	return p.Conn.Read(b)
}

// echoTCP sends bytes to an echo, closes its side, and compares the answer.
func echoTCP(ns *netns.Namespace, to string, data []byte) error {
	conn, err := testkit.Dial(ns, "tcp", to)
	if err != nil {
		return err
	}
	defer conn.Close()
	written := make(chan error, 1)
	go func() {
		_, err := conn.Write(data)
		written <- errors.Join(err, conn.(*net.TCPConn).CloseWrite())
	}()
	received, err := io.ReadAll(patient{conn})
	if err != nil {
		_ = conn.Close() // ends the write
	}
	if err := errors.Join(err, <-written); err != nil {
		return fmt.Errorf("tcp to %s: after %d bytes: %w", to, len(received), err)
	}
	if !bytes.Equal(received, data) {
		return fmt.Errorf("tcp to %s: sent %d bytes, received %d others", to, len(data), len(received))
	}
	return nil
}

func TestEchoTCP(t *testing.T) {
	bothOffloads(t, func(t *testing.T, offload bool) {
		ns, d, _ := echoing(t, offload)
		ip(t, ns, "route add 172.16.0.0/12 dev left")
		for to, most := range map[string]int{"10.9.0.2:1": 10 << 20, "172.20.1.1:65535": 1 << 20,
			"[fd00:9::abcd:1]:80": 1 << 20} {
			for _, size := range []int{0, 1, most} {
				testkit.Succeed(t, echoTCP(ns, to, payload(size)))
			}
		}
		counters := countersOf(d)
		testkit.Check(t, counters.Dropped == 0, "%d packets were dropped", counters.Dropped)
		device := testkit.Must(rtnl.In(ns).Device("left"))(t)
		// With offload both the kernel and the library hand over large ones.
		counters = countersOf(d)
		if whole := device.TxPackets*2 < counters.ReadPackets; whole != offload {
			t.Errorf("%d packets read on a wire, %d as the kernel counts", counters.ReadPackets, device.TxPackets)
		}
	})
}

// TestEchoTCPMany has many connections open at once, to one address and port.
func TestEchoTCPMany(t *testing.T) {
	ns, _, _ := echoing(t, true)
	var group errgroup.Group
	for i := range 100 {
		group.Go(func() error { return echoTCP(ns, "10.9.0.2:80", payload(1000*i)) })
	}
	testkit.Succeed(t, group.Wait())
}

// TestEchoTCPEnds ends an echo that has connections open.
func TestEchoTCPEnds(t *testing.T) {
	ns, _, stop := echoing(t, false)
	conn := testkit.Must(testkit.Dial(ns, "tcp", "10.9.0.2:80"))(t)
	defer conn.Close()
	testkit.Must(conn.Write([]byte("hello")))(t)
	testkit.Must(io.ReadFull(conn, make([]byte, 5)))(t)
	testkit.Succeed(t, stop())
}

// TestEchoTCPHalfOpen ends an echo with a connection that is not open yet: no host has the client's address.
func TestEchoTCPHalfOpen(t *testing.T) {
	ns, d, stop := echoing(t, false)
	packet := hexBytes(t, "4500003c 00004000 40060000 0a090063 0a090002"+syn)
	sum(packet)
	inject(t, ns, "left", packet)
	testkit.Eventually(t, 5*time.Second, func() error {
		if countersOf(d).WrittenPackets == 0 {
			return errors.New("no answer")
		}
		return nil
	})
	testkit.Succeed(t, stop())
}

// FuzzEcho passes any bytes to the stack, which must not panic.
func FuzzEcho(f *testing.F) {
	for _, test := range decodeTests {
		f.Add(hexBytes(f, test.packet))
	}
	echo := testkit.Must(newEcho(1500))(f)
	f.Cleanup(echo.close)
	f.Fuzz(func(_ *testing.T, packet []byte) {
		echo.receive(packet)
		for answer := echo.endpoint.Read(); answer != nil; answer = echo.endpoint.Read() {
			answer.DecRef()
		}
	})
}
