// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"mustang/internal/netns"
)

// TakesBigIPv6 reports whether IPv6 packets of BIG TCP keep their header. To 6.19, Linux adds a jumbo header of 8 bytes
// to them, which the MTU check of a router counts (ip6_forward, skb_gso_validate_network_len): it drops packets whose
// segments fill the MTU, and a stream through a routing host is a third as fast. The first call sends a stream over the
// loopback device of a namespace of its own, and looks at its packets. What fails means no.
func TakesBigIPv6() bool { return takesBigIPv6() }

var takesBigIPv6 = sync.OnceValue(func() bool {
	ns, err := netns.New()
	if err != nil {
		return false
	}
	defer ns.Close()
	plain, err := probeBigIPv6(ns)
	return err == nil && plain
})

const (
	bigProbeTime  = 2 * time.Second // until a packet of more than 64 KiB has come
	bigProbeBytes = 16 << 20        // of the stream
)

// probeBigIPv6 returns whether TCP follows the IPv6 header of the first packet of more than 64 KiB.
func probeBigIPv6(ns *netns.Namespace) (plain bool, err error) {
	err = In(ns).OnDevice("", "lo", func(handle *netlink.Handle, lo netlink.Link) error {
		return SetUpWithPackets(handle, lo, BigTCPBytes, true)
	})
	if err != nil {
		return false, err
	}
	var listener net.Listener
	var client net.Conn
	fd := -1
	err = ns.Do(func() (err error) {
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		ipv6 := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_IPV6))
		if err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: ipv6}); err != nil {
			return err
		}
		loopback := netip.AddrPortFrom(netip.IPv6Loopback(), 0)
		if listener, err = net.ListenTCP("tcp6", net.TCPAddrFromAddrPort(loopback)); err != nil {
			return err
		}
		client, err = net.DialTimeout("tcp6", listener.Addr().String(), bigProbeTime)
		return err
	})
	if listener != nil {
		defer listener.Close()
	}
	if fd >= 0 {
		defer unix.Close(fd)
	}
	if err != nil {
		return false, err
	}
	defer client.Close()
	go func() {
		if server, err := listener.Accept(); err == nil {
			_, _ = io.Copy(io.Discard, server)
			_ = server.Close()
		}
	}()
	end := time.Now().Add(bigProbeTime)
	_ = client.SetDeadline(end)
	go func() { _, _ = client.Write(make([]byte, bigProbeBytes)) }()
	return firstBigPlain(fd, end)
}

func firstBigPlain(fd int, end time.Time) (bool, error) {
	timeout := unix.NsecToTimeval(int64(bigProbeTime))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		return false, err
	}
	header := make([]byte, 40)
	for time.Now().Before(end) {
		n, _, err := unix.Recvfrom(fd, header, unix.MSG_TRUNC)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return false, err
		}
		if n > PacketBytes {
			return header[6] == unix.IPPROTO_TCP, nil
		}
	}
	return false, nil
}
