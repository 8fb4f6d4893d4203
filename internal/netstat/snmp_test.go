// SPDX-License-Identifier: Apache-2.0

package netstat_test

import (
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"mustang/internal/netstat"
	"mustang/internal/testkit"
)

// TestIPCounts sends datagrams over a namespace's loopback and looks at what its IP
// layer counted.
func TestIPCounts(t *testing.T) {
	t.Parallel()
	ns := testkit.Namespace(t, "ip-counts")
	before, err := netstat.ReadIPCounters(ns)
	if err != nil {
		t.Fatal(err)
	}
	const packets = 20
	err = ns.Do(func() error {
		server, err := net.ListenPacket("udp4", "127.0.0.1:0")
		if err != nil {
			return err
		}
		defer server.Close()
		client, err := net.Dial("udp4", server.LocalAddr().String())
		if err != nil {
			return err
		}
		defer client.Close()
		for range packets {
			if _, err := client.Write([]byte("x")); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	after, err := netstat.ReadIPCounters(ns)
	if err != nil {
		t.Fatal(err)
	}
	if sent, delivered := after.Sent-before.Sent, after.Delivered-before.Delivered; sent != packets || delivered != packets {
		t.Errorf("%d sent and %d delivered, want %d", sent, delivered, packets)
	}
	if after.Forwarded != 0 {
		t.Errorf("%d forwarded in a namespace with one device", after.Forwarded)
	}
}

// TestChecksumErrors counts packets with a wrong checksum, of each protocol.
func TestChecksumErrors(t *testing.T) {
	a, b := testkit.VethPair(t)
	before, err := netstat.ReadChecksumErrors(b)
	if err != nil || before != (netstat.ChecksumErrors{}) {
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
	after, err := netstat.ReadChecksumErrors(b)
	if want := (netstat.ChecksumErrors{TCP: 1, UDP: 2}); err != nil || after != want {
		t.Errorf("counted %+v, %v; want %+v", after, err, want)
	}
}
