// SPDX-License-Identifier: Apache-2.0

package testkit

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

	"mustang/internal/nl"
)

// ioTimeout is how long a RoundTrip's connect may take, and how long it waits for
// the next bytes.
const ioTimeout = 5 * time.Second

// whoAmI is the datagram that an echo server answers with its peer's address.
const whoAmI = "testkit: who am I?\n"

// Echo starts an echo server inside ns that runs until the test is over, and
// returns the address it listens on. The network is "tcp" or "udp"; addr is
// like "192.168.10.10:0", where port 0 picks a free one.
//
// A TCP server first sends a line with the address that it sees the client at,
// then echoes until the client closes its side. A UDP server echoes each
// datagram.
func Echo(t testing.TB, ns *nl.Namespace, network, addr string) netip.AddrPort {
	t.Helper()
	if strings.HasPrefix(network, "udp") {
		return echoUDP(t, ns, network, addr)
	}
	var listener net.Listener
	err := ns.Do(func() (err error) {
		listener, err = net.Listen(network, addr)
		return err
	})
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

func echoUDP(t testing.TB, ns *nl.Namespace, network, addr string) netip.AddrPort {
	t.Helper()
	var conn net.PacketConn
	err := ns.Do(func() (err error) {
		conn, err = net.ListenPacket(network, addr)
		return err
	})
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

// RoundTrip connects from inside ns to an Echo server at addr, sends payload and
// reads it back. It returns the address that the server saw the client at. A TCP
// payload may be of any size; a UDP payload is one datagram. Lost packets are an
// error, not a failed test, so that tests can expect one.
//
//revive:disable-next-line:argument-limit // t comes on top of the four that say what is sent
func RoundTrip(t testing.TB, ns *nl.Namespace, network, addr string, payload []byte) (netip.AddrPort, error) {
	t.Helper()
	conn, err := Dial(ns, network, addr)
	if err != nil {
		return netip.AddrPort{}, err
	}
	defer conn.Close()
	exchange := exchangeTCP
	if strings.HasPrefix(network, "udp") {
		exchange = exchangeUDP
	}
	peer, err := exchange(conn, payload)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("%s from %s to %s: %w", network, ns.Name(), addr, err)
	}
	return peer, nil
}

// Dial connects from inside ns; the caller closes the connection.
func Dial(ns *nl.Namespace, network, addr string) (conn net.Conn, err error) {
	err = ns.Do(func() error {
		dialer := net.Dialer{Timeout: ioTimeout}
		conn, err = dialer.DialContext(context.Background(), network, addr)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("connect from %s: %w", ns.Name(), err)
	}
	return conn, nil
}

func exchangeTCP(conn net.Conn, payload []byte) (netip.AddrPort, error) {
	written := make(chan error, 1)
	go func() {
		_, err := conn.Write(payload)
		if err == nil {
			err = conn.(*net.TCPConn).CloseWrite()
		}
		written <- err
	}()
	received, err := io.ReadAll(impatient{conn})
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

func exchangeUDP(conn net.Conn, payload []byte) (netip.AddrPort, error) {
	ask := func(question []byte) ([]byte, error) {
		if _, err := conn.Write(question); err != nil {
			return nil, err
		}
		buffer := make([]byte, 1<<16)
		n, err := impatient{conn}.Read(buffer)
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

// impatient reads with a deadline that moves on with each read.
type impatient struct{ conn net.Conn }

func (i impatient) Read(p []byte) (int, error) {
	if err := i.conn.SetReadDeadline(time.Now().Add(ioTimeout)); err != nil {
		return 0, err
	}
	return i.conn.Read(p)
}

func parsePeer(line []byte) (netip.AddrPort, error) {
	peer, err := netip.ParseAddrPort(string(bytes.TrimSpace(line)))
	return unmap(peer), err
}

func unmap(addr netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())
}
