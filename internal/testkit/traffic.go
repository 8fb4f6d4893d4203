// SPDX-License-Identifier: Apache-2.0

package testkit

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"mustang/internal/netns"
)

const ioTimeout = 5 * time.Second // limits a connect, and the wait for the next bytes

// answerTimes limit the wait for the answer to each datagram that RoundTrip sends, [ioTimeout] in total. The first is
// half the time that RFC 8085 advises: the networks of tests are near.
var answerTimes = []time.Duration{500 * time.Millisecond, time.Second, 3500 * time.Millisecond}

// whoAmI is the datagram that an echo server answers with the address of its peer.
const whoAmI = "testkit: who am I?\n"

// Echo starts an echo server in ns that runs until the test ends, and returns its address. The network is "tcp" or
// "udp"; addr is an address such as "192.168.10.10:0", where port 0 selects a free one.
//
// A TCP server first sends a line with the client's address as it sees it, then echoes
// until the client closes its side. A UDP server echoes each datagram.
func Echo(t testing.TB, ns *netns.Namespace, network, addr string) netip.AddrPort {
	t.Helper()
	if strings.HasPrefix(network, "udp") {
		return echoUDP(t, ns, network, addr)
	}
	listener, err := netns.Get(ns, func() (net.Listener, error) { return net.Listen(network, addr) })
	if err != nil {
		t.Fatalf("listen in %s: %v", ns.Name(), err)
	}
	closeAtCleanup(t, listener)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				if _, err := fmt.Fprintln(conn, conn.RemoteAddr()); err == nil {
					_, _ = io.Copy(conn, conn)
				}
			}()
		}
	}()
	return unmap(netip.MustParseAddrPort(listener.Addr().String()))
}

func echoUDP(t testing.TB, ns *netns.Namespace, network, addr string) netip.AddrPort {
	t.Helper()
	conn, err := netns.Get(ns, func() (net.PacketConn, error) { return net.ListenPacket(network, addr) })
	if err != nil {
		t.Fatalf("listen in %s: %v", ns.Name(), err)
	}
	closeAtCleanup(t, conn)
	go func() {
		buffer := make([]byte, 1<<16)
		for {
			n, peer, err := conn.ReadFrom(buffer)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil { // such as an ICMP error for an earlier answer
				continue
			}
			answer := buffer[:n]
			if string(answer) == whoAmI {
				answer = []byte(peer.String())
			}
			_, _ = conn.WriteTo(answer, peer)
		}
	}()
	return unmap(netip.MustParseAddrPort(conn.LocalAddr().String()))
}

// RoundTrip connects from ns to an Echo server at addr, sends payload and reads it back. It returns the client's
// address as the server saw it. A TCP payload can have any size; a UDP payload is one datagram. Lost packets are an
// error, not a failed test, so that tests can expect it.
//
// A datagram without an answer is sent again twice, each time from a new socket, as resolvers do. For example, a
// user-space Open vSwitch loses packets of a tunnel while it reads the routes of its host again. A path that loses
// the first datagram of each connection loses all three.
//
//revive:disable-next-line:argument-limit // t comes on top of four
func RoundTrip(t testing.TB, ns *netns.Namespace, network, addr string, payload []byte) (netip.AddrPort, error) {
	t.Helper()
	exchange, limits := exchangeTCP, []time.Duration{ioTimeout}
	if strings.HasPrefix(network, "udp") {
		exchange, limits = exchangeUDP, answerTimes
	}
	for i := 0; ; i++ {
		conn, err := Dial(ns, network, addr)
		if err != nil {
			return netip.AddrPort{}, err
		}
		defer conn.Close() // not before the end: a late answer finds its socket
		peer, err := exchange(patientConn{conn, limits[i]}, payload)
		if err == nil {
			return peer, nil
		}
		err = fmt.Errorf("%s from %s to %s: %w", network, ns.Name(), addr, err)
		if i == len(limits)-1 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return netip.AddrPort{}, err
		}
		t.Logf("%v; another try", err)
	}
}

// Dial connects from ns. The caller closes the connection.
func Dial(ns *netns.Namespace, network, addr string) (conn net.Conn, err error) {
	conn, err = netns.Get(ns, func() (net.Conn, error) { return net.DialTimeout(network, addr, ioTimeout) })
	if err != nil {
		return nil, fmt.Errorf("connect from %s: %w", ns.Name(), err)
	}
	return conn, nil
}

func exchangeTCP(conn patientConn, payload []byte) (netip.AddrPort, error) {
	written := make(chan error, 1)
	go func() {
		_, err := conn.Write(payload)
		if err == nil {
			err = conn.Conn.(*net.TCPConn).CloseWrite()
		}
		written <- err
	}()
	received, err := io.ReadAll(conn)
	if err != nil {
		_ = conn.Close() // ends the write
		<-written
		return netip.AddrPort{}, fmt.Errorf("after %d bytes: %w", len(received), err)
	}
	if err := <-written; err != nil {
		return netip.AddrPort{}, err
	}
	line, echo, _ := bytes.Cut(received, []byte("\n"))
	if !bytes.Equal(echo, payload) {
		return netip.AddrPort{}, fmt.Errorf("sent %d bytes, received %d others", len(payload), len(echo))
	}
	return parsePeer(line)
}

func exchangeUDP(conn patientConn, payload []byte) (netip.AddrPort, error) {
	ask := func(question []byte) ([]byte, error) {
		if _, err := conn.Write(question); err != nil {
			return nil, err
		}
		buffer := make([]byte, 1<<16)
		n, err := conn.Read(buffer)
		return buffer[:n], err
	}
	echo, err := ask(payload)
	if err != nil {
		return netip.AddrPort{}, err
	}
	if !bytes.Equal(echo, payload) {
		return netip.AddrPort{}, fmt.Errorf("sent %d bytes, received %d others", len(payload), len(echo))
	}
	line, err := ask([]byte(whoAmI))
	if err != nil {
		return netip.AddrPort{}, err
	}
	return parsePeer(line)
}

// patientConn limits the wait for the next bytes.
type patientConn struct {
	net.Conn
	limit time.Duration
}

func (c patientConn) Read(p []byte) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(c.limit)); err != nil {
		return 0, err
	}
	return c.Conn.Read(p)
}

func parsePeer(line []byte) (netip.AddrPort, error) {
	peer, err := netip.ParseAddrPort(string(bytes.TrimSpace(line)))
	return unmap(peer), err
}

func unmap(addr netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())
}

// Ping sends an ICMP echo request with size bytes of payload from ns and waits for its
// answer. No answer within 5 s, or another payload, is an error.
func Ping(ns *netns.Namespace, addr netip.Addr, size int) error {
	if err := ping(ns, addr, size); err != nil {
		return fmt.Errorf("ping %s from %s: %w", addr, ns.Name(), err)
	}
	return nil
}

func ping(ns *netns.Namespace, addr netip.Addr, size int) error {
	network, protocol := "ip4:icmp", unix.IPPROTO_ICMP
	var request, reply icmp.Type = ipv4.ICMPTypeEcho, ipv4.ICMPTypeEchoReply
	if addr.Is6() {
		network, protocol = "ip6:ipv6-icmp", unix.IPPROTO_ICMPV6
		request, reply = ipv6.ICMPTypeEchoRequest, ipv6.ICMPTypeEchoReply
	}
	to := &net.IPAddr{IP: addr.AsSlice()}
	conn, err := netns.Get(ns, func() (*net.IPConn, error) { return net.DialIP(network, nil, to) })
	if err != nil {
		return err
	}
	defer conn.Close()
	want := &icmp.Echo{ID: rand.N(1 << 16), Seq: rand.N(1 << 16), Data: make([]byte, size)}
	_, _ = rand.NewChaCha8([32]byte{}).Read(want.Data)                      // it never fails
	message, err := (&icmp.Message{Type: request, Body: want}).Marshal(nil) // the kernel computes the checksum for IPv6
	if err != nil {
		return err
	}
	if _, err := conn.Write(message); err != nil {
		return err
	}
	if err := conn.SetReadDeadline(time.Now().Add(ioTimeout)); err != nil {
		return err
	}
	buffer := make([]byte, 1<<16)
	for {
		n, _, err := conn.ReadFrom(buffer) // without the IP header, unlike Read
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return errors.New("no answer")
		}
		if err != nil {
			return err
		}
		message, err := icmp.ParseMessage(protocol, buffer[:n])
		if err != nil {
			return err
		}
		echo, is := message.Body.(*icmp.Echo)
		if !is || message.Type != reply || echo.ID != want.ID || echo.Seq != want.Seq {
			continue
		}
		if !bytes.Equal(echo.Data, want.Data) {
			return fmt.Errorf("sent %d bytes, received %d others", size, len(echo.Data))
		}
		return nil
	}
}

// Drop drops packets that arrive in a namespace and match an expression of nftables.
func Drop(t testing.TB, ns *netns.Namespace, match string) {
	t.Helper()
	Command(t, ns, "nft add table inet loss; add chain inet loss in { type filter hook input priority 0; }; add rule "+
		"inet loss in "+match+" drop")
}

// WatchPackets records the size in bytes of the largest packet that a device in ns sends or receives, until the test
// ends. inspect, if not nil, is called with each packet that it receives, one after the other.
func WatchPackets(t testing.TB, ns *netns.Namespace, index int, inspect func(packet []byte)) *atomic.Int64 {
	t.Helper()
	var fd int
	err := ns.Do(func() (err error) {
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
		return errors.Join(
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20),
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}),
			unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: index}))
	})
	Succeed(t, err)
	var largest atomic.Int64
	var stop atomic.Bool
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		packet := make([]byte, 1<<19)
		for !stop.Load() {
			n, from, err := unix.Recvfrom(fd, packet, unix.MSG_TRUNC)
			if err != nil {
				continue // nothing came in time
			}
			largest.Store(max(largest.Load(), int64(n)))
			if link, ok := from.(*unix.SockaddrLinklayer); inspect != nil && ok && link.Pkttype != unix.PACKET_OUTGOING {
				inspect(packet[:min(n, len(packet))])
			}
		}
	}()
	t.Cleanup(func() {
		stop.Store(true)
		<-stopped
		_ = unix.Close(fd)
	})
	return &largest
}
