// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"mustang/internal/nl"
)

const (
	// exchangeTimeout is how long an exchange may take. It is short on a sound network.
	exchangeTimeout = 2 * time.Second
	// exchangeBytes and exchangeDatagrams are what is sent each way.
	exchangeBytes     = 1 << 20
	exchangeDatagrams = 64
)

// exchangeAll sends TCP and UDP from one place to each address of another, and
// back. The error says what got lost.
func exchangeAll(ctx context.Context, from, to *nl.Namespace, addrs []netip.Addr) error {
	var errs []error
	for _, addr := range addrs {
		errs = append(errs, exchangeStream(ctx, from, to, addr), exchangePackets(ctx, from, to, addr))
	}
	return errors.Join(errs...)
}

// exchangeStream sends by TCP what an echo server sends back.
func exchangeStream(ctx context.Context, from, to *nl.Namespace, addr netip.Addr) (err error) {
	defer describeExchange(&err, "TCP", addr)
	var listener net.Listener
	err = to.Do(func() (err error) {
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
	conn, end, err := dialUntil(ctx, from, listener.Addr())
	if err != nil {
		return err
	}
	defer end()
	go func() { _, _ = conn.Write(make([]byte, exchangeBytes)) }()
	_, err = io.ReadFull(conn, make([]byte, exchangeBytes))
	return err
}

// exchangePackets sends datagrams that fill the MTU, one after the other, to an
// echo server. It is no error if some of them are lost, but not all.
func exchangePackets(ctx context.Context, from, to *nl.Namespace, addr netip.Addr) (err error) {
	defer describeExchange(&err, "UDP", addr)
	headers := 20 + 8
	if addr.Is6() {
		headers = 40 + 8
	}
	var server net.PacketConn
	err = to.Do(func() (err error) {
		server, err = net.ListenPacket("udp", netip.AddrPortFrom(addr, 0).String())
		return err
	})
	if err != nil {
		return err
	}
	defer server.Close()
	go func() {
		buffer := make([]byte, overlayMTU)
		for {
			n, peer, err := server.ReadFrom(buffer)
			if err != nil {
				return
			}
			_, _ = server.WriteTo(buffer[:n], peer)
		}
	}()
	conn, end, err := dialUntil(ctx, from, server.LocalAddr())
	if err != nil {
		return err
	}
	defer end()
	packet := make([]byte, overlayMTU-headers)
	for range exchangeDatagrams {
		if _, err := conn.Write(packet); err != nil {
			return err
		}
	}
	_, err = conn.Read(packet)
	return err
}

// dialUntil connects from a place for an exchange, which ends with ctx. The
// caller calls end.
func dialUntil(ctx context.Context, from *nl.Namespace, to net.Addr) (conn net.Conn, end func(), err error) {
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

func describeExchange(err *error, protocol string, addr netip.Addr) {
	if *err != nil {
		*err = fmt.Errorf("%s to %v: %w", protocol, addr, *err)
	}
}
