// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/netns"
)

const (
	// awaitTimeout limits Await. A switch in user space has to learn first where the
	// other host is.
	awaitTimeout = 20 * time.Second
	// awaitRetry is the first wait for an answer; each further one takes twice as long.
	awaitRetry = 20 * time.Millisecond
	// closedPort is a port where nothing listens (discard, RFC 863).
	closedPort = 9
	// exchangeTimeout limits an exchange. It is short on a sound network.
	exchangeTimeout = 2 * time.Second
	// exchangeBytes and datagramCount are the amounts that are sent each way.
	exchangeBytes = 1 << 20
	datagramCount = 64
)

// awaitPath waits until an address is reachable from a namespace, so that no first packet
// of a measurement is lost. It sends datagrams to a port where nothing listens until
// ICMP reports that, for at most 20 s.
func awaitPath(ctx context.Context, from *netns.Namespace, to netip.Addr) error {
	var conn net.Conn
	err := from.Do(func() (err error) {
		conn, err = net.Dial("udp", netip.AddrPortFrom(to, closedPort).String())
		return err
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	deadline := time.Now().Add(awaitTimeout)
	for wait := awaitRetry; ; wait = min(2*wait, time.Second) {
		if err := conn.SetReadDeadline(time.Now().Add(wait)); err != nil {
			return err
		}
		_, err = conn.Write([]byte("mustang"))
		if err == nil {
			_, err = conn.Read(make([]byte, 1))
		}
		switch {
		case errors.Is(err, unix.ECONNREFUSED):
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Now().After(deadline):
			return fmt.Errorf("no answer from %v in %v: %w", to, awaitTimeout, err)
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			time.Sleep(awaitRetry) // "no route" returns at once
		}
	}
}

// exchange sends TCP and UDP through the tunnel and back. The error names lost
// traffic.
func (t tunnelCheck) exchange(ctx context.Context) error {
	var errs []error
	for _, addr := range t.ServerAddresses {
		if err := t.exchangeStream(ctx, addr); err != nil {
			errs = append(errs, fmt.Errorf("TCP to %v: %w", addr, err))
		}
		if err := t.exchangeDatagrams(ctx, addr); err != nil {
			errs = append(errs, fmt.Errorf("UDP to %v: %w", addr, err))
		}
	}
	return errors.Join(errs...)
}

// exchangeStream sends a TCP stream to an echo server and reads it back.
func (t tunnelCheck) exchangeStream(ctx context.Context, addr netip.Addr) error {
	var listener net.Listener
	err := t.Server.Do(func() (err error) {
		listener, err = net.Listen("tcp", netip.AddrPortFrom(addr, 0).String())
		return err
	})
	if err != nil {
		return err
	}
	defer listener.Close()
	go func() {
		if conn, err := listener.Accept(); err == nil {
			_, _ = io.Copy(conn, conn)
			_ = conn.Close()
		}
	}()
	conn, end, err := dialExchange(ctx, t.Client, listener.Addr())
	if err != nil {
		return err
	}
	defer end()
	go func() { _, _ = conn.Write(make([]byte, exchangeBytes)) }()
	_, err = io.ReadFull(conn, make([]byte, exchangeBytes))
	return err
}

// exchangeDatagrams sends datagrams that fill the MTU to an echo server. It returns an
// error if none comes back.
func (t tunnelCheck) exchangeDatagrams(ctx context.Context, addr netip.Addr) error {
	headers := 20 + 8
	if addr.Is6() {
		headers = 40 + 8
	}
	var server net.PacketConn
	err := t.Server.Do(func() (err error) {
		server, err = net.ListenPacket("udp", netip.AddrPortFrom(addr, 0).String())
		return err
	})
	if err != nil {
		return err
	}
	defer server.Close()
	go func() {
		buffer := make([]byte, t.MTU)
		for {
			n, peer, err := server.ReadFrom(buffer)
			if err != nil {
				return
			}
			_, _ = server.WriteTo(buffer[:n], peer)
		}
	}()
	conn, end, err := dialExchange(ctx, t.Client, server.LocalAddr())
	if err != nil {
		return err
	}
	defer end()
	packet := make([]byte, t.MTU-headers)
	for range datagramCount {
		if _, err := conn.Write(packet); err != nil {
			return err
		}
	}
	_, err = conn.Read(packet)
	return err
}

// dialExchange connects from a namespace for one exchange, which ctx and exchangeTimeout
// end. The caller calls end.
func dialExchange(ctx context.Context, from *netns.Namespace, to net.Addr) (conn net.Conn, end func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, exchangeTimeout)
	err = from.Do(func() (err error) {
		conn, err = (&net.Dialer{}).DialContext(ctx, to.Network(), to.String())
		return err
	})
	if err != nil {
		cancel()
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	return conn, func() { stop(); cancel(); _ = conn.Close() }, nil
}
