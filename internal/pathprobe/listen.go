// SPDX-License-Identifier: Apache-2.0

package pathprobe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"golang.org/x/time/rate"

	"mustang/internal/netns"
	"mustang/internal/nodenet"
)

// DefaultPort is the UDP port of a listening end. In the tunnel, it is a TCP port.
const DefaultPort = 7178

// Addresses in the tunnel, of a range for tests of networks (RFC 2544): the listening end has the first, others one of
// the second half.
var (
	inside      = netip.MustParsePrefix("198.18.0.1/15")
	insideOther = [2]byte{198, 19}
)

// Bounds of a listening end: streams at once, their bytes and their duration.
const (
	maxStreams  = 8
	streamBytes = 256 << 10
	streamLimit = 30 * time.Second
)

// maxRate limits the datagrams that a listening end reads in a second, and so what a flood costs.
const maxRate = 2000

// Options configure an end.
type Options struct {
	Host *netns.Namespace // the node's
	// At is the address of the listening end, From of the asking end; not valid: the kernel chooses it.
	At   netip.AddrPort
	From netip.Addr
	// Port is the UDP port of VXLAN.
	Port uint16
}

// Listen answers probes until ctx ends. It calls ready once it does.
func Listen(ctx context.Context, o Options, ready func() error) (err error) {
	device, err := nodenet.At(o.Host, o.At.Addr())
	if err != nil {
		return err
	}
	conn, err := open(o.Host, o.At, netip.AddrPort{})
	if err != nil {
		return err
	}
	defer conn.Close()
	tunnel, err := netns.New()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, tunnel.Close()) }()
	mtu := device.MTU - nodenet.Overhead(o.At.Addr())
	end := nodenet.ProbeEnd{Host: o.Host, Inside: tunnel, Local: o.At.Addr(), Port: o.Port, MTU: mtu, Address: inside}
	if err := end.Add(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end.Delete()) }()
	streams, err := netns.Get(tunnel, func() (net.Listener, error) {
		return net.Listen("tcp", netip.AddrPortFrom(inside.Addr(), DefaultPort).String())
	})
	if err != nil {
		return fmt.Errorf("listen in the tunnel: %w", err)
	}
	defer streams.Close()
	defer context.AfterFunc(ctx, func() { _, _ = conn.Close(), streams.Close() })()
	go echo(streams)
	if err := ready(); err != nil {
		return err
	}
	answer(conn, func(netip.Addr) bool { return true }, func() (uint64, error) { return wrongChecksums(o.Host, tunnel) })
	return nil
}

// Answer answers probes of the path MTU, other than [Probe], until ctx ends. It ignores senders unless accept permits
// their address.
func Answer(ctx context.Context, o Options, accept func(from netip.Addr) bool) error {
	conn, err := open(o.Host, o.At, netip.AddrPort{})
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	answer(conn, accept, nil)
	return nil
}

// answer answers probes until the connection is closed. wrong returns the number of wrong checksums in the tunnel; nil:
// no answer to requests for it.
func answer(conn *net.UDPConn, accept func(netip.Addr) bool, wrong func() (uint64, error)) {
	buffer, limit := make([]byte, 1<<16), rate.NewLimiter(maxRate, maxRate/10)
	for {
		_ = limit.Wait(context.Background()) // at most for one datagram
		n, from, err := conn.ReadFromUDPAddrPort(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		m, ok := decode(buffer[:n])
		if err != nil || !ok || n < Smallest-nodenet.Headers(netip.IPv6Unspecified()) || !accept(from.Addr().Unmap()) {
			continue // an ICMP error of an earlier answer, or a stranger
		}
		send := func(kind kind, value uint64, size int) {
			_, _ = conn.WriteToUDPAddrPort(message{kind, m.nonce, value}.encode(size), from)
		}
		switch {
		case m.kind == kindProbe:
			send(kindThere, m.value, 0)
			send(kindBack, m.value, n)
		case m.kind == kindCount && wrong != nil:
			if n, err := wrong(); err == nil {
				send(kindWrong, n, 0)
			}
		}
	}
}

// echo sends back what streams bring, until the listener is closed.
func echo(streams net.Listener) {
	places := make(chan struct{}, maxStreams)
	for {
		places <- struct{}{}
		conn, err := streams.Accept()
		if err != nil {
			return
		}
		go func() {
			defer func() { <-places }()
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(streamLimit))
			_, _ = io.Copy(conn, io.LimitReader(conn, streamBytes))
		}()
	}
}
