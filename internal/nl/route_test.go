// SPDX-License-Identifier: Apache-2.0

package nl_test

import (
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/nl"
	"mustang/internal/testkit"
)

func underlay(prefix string) netip.Prefix { return netip.MustParsePrefix(prefix) }

// routedPair joins two namespaces by a wire with addresses: device left in the
// first, right in the second.
func routedPair(t *testing.T) (a, b *nl.Namespace) {
	t.Helper()
	testkit.RequireRoot(t)
	a, b = testkit.Namespace(t, "a"), testkit.Namespace(t, "b")
	if err := nl.AddWire(nl.WireEnd{Namespace: a, Name: "left"}, nl.WireEnd{Namespace: b, Name: "right"}, 1500); err != nil {
		t.Fatal(err)
	}
	for name, end := range map[string]struct {
		ns    *nl.Namespace
		addrs []netip.Prefix
	}{
		"left":  {a, []netip.Prefix{underlay("10.0.0.1/24"), underlay("fd00:1::1/64")}},
		"right": {b, []netip.Prefix{underlay("10.0.0.2/24"), underlay("fd00:1::2/64")}},
	} {
		if err := end.ns.Configure(name, nl.DeviceConfig{Addresses: end.addrs, Up: true}); err != nil {
			t.Fatal(err)
		}
	}
	return a, b
}

// TestAddRoute reaches addresses behind a next hop.
func TestAddRoute(t *testing.T) {
	a, b := routedPair(t)
	far := []netip.Prefix{underlay("192.168.11.11/32"), underlay("fd00:11::b/128")}
	if err := b.Configure("lo", nl.DeviceConfig{Addresses: far}); err != nil {
		t.Fatal(err)
	}
	hops := []netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00:1::2")}
	for i, dst := range []netip.Prefix{underlay("192.168.11.99/24"), underlay("fd00:11::/64")} {
		if err := a.AddRoute(dst, hops[i]); err != nil {
			t.Fatal(err)
		}
		// A new IPv6 address receives a moment after it is there.
		testkit.Eventually(t, 10*time.Second, func() error { return testkit.Ping(a, far[i].Addr(), 8) })
		if err := a.AddRoute(dst, hops[i]); err == nil {
			t.Error("a second route to one destination")
		}
	}
	if err := a.AddRoute(underlay("192.168.12.0/24"), netip.MustParseAddr("172.16.0.1")); err == nil {
		t.Error("a route by a next hop that is nowhere")
	}
}

// TestFinishPackets reads what the other end of a wire is given, which is whole
// packets with their checksums. TestChecksumErrors is about those without.
func TestFinishPackets(t *testing.T) {
	a, b := routedPair(t)
	if err := a.FinishPackets("left"); err != nil {
		t.Fatal(err)
	}
	on, err := a.Offloads("left")
	if err != nil || on["tso"] || on["tx-checksum"] {
		t.Errorf("offloads are %v, %v", on, err)
	}
	server := testkit.Echo(t, b, "tcp", "[fd00:1::2]:0")
	if _, err := testkit.RoundTrip(t, a, "tcp", server.String(), make([]byte, 1<<18)); err != nil {
		t.Error(err)
	}
	if err := a.FinishPackets("none"); err == nil {
		t.Error("a device that is not there")
	}
}

// TestChecksumErrors counts packets with a wrong checksum, of each protocol.
func TestChecksumErrors(t *testing.T) {
	a, b := routedPair(t)
	before, err := b.ChecksumErrors()
	if err != nil || before != (nl.ChecksumErrors{}) {
		t.Fatalf("before: %+v, %v", before, err)
	}
	segment := make([]byte, 20)
	segment[12], segment[16], segment[17] = 5<<4, 0xba, 0xad
	datagram := []byte{0x30, 0x39, 0x30, 0x39, 0, 12, 0xba, 0xad, 'b', 'a', 'd', '!'}
	err = a.Do(func() error {
		for _, packet := range []struct {
			family, protocol int
			data             []byte
			to               unix.Sockaddr
		}{
			{unix.AF_INET, unix.IPPROTO_TCP, segment, &unix.SockaddrInet4{Addr: [4]byte{10, 0, 0, 2}}},
			{unix.AF_INET, unix.IPPROTO_UDP, datagram, &unix.SockaddrInet4{Addr: [4]byte{10, 0, 0, 2}}},
			{unix.AF_INET6, unix.IPPROTO_UDP, datagram, &unix.SockaddrInet6{Addr: netip.MustParseAddr("fd00:1::2").As16()}},
		} {
			fd, err := unix.Socket(packet.family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, packet.protocol)
			if err != nil {
				return err
			}
			err = unix.Sendto(fd, packet.data, 0, packet.to)
			_ = unix.Close(fd)
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	// What is sent later comes later.
	for _, addr := range []string{"10.0.0.2", "fd00:1::2"} {
		if err := testkit.Ping(a, netip.MustParseAddr(addr), 8); err != nil {
			t.Fatal(err)
		}
	}
	after, err := b.ChecksumErrors()
	if want := (nl.ChecksumErrors{TCP: 1, UDP: 2}); err != nil || after != want {
		t.Errorf("counted %+v, %v; want %+v", after, err, want)
	}
}
