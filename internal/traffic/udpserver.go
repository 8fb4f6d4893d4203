// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// errSilent ends a session whose client greeted and never spoke again.
var errSilent = errors.New("client never spoke")

// listenUDP opens a UDP server on addr, whose port is known.
func (w *worker) listenUDP(ctx context.Context, addr netip.AddrPort, g *guard) error {
	config := net.ListenConfig{Control: shareAddress}
	network := "udp6"
	if addr.Addr().Unmap().Is4() {
		network = "udp4"
	}
	packets, err := config.ListenPacket(ctx, network, addr.String())
	if err != nil {
		return err
	}
	conn, ok := packets.(*net.UDPConn)
	if !ok {
		return errors.Join(fmt.Errorf("listen on UDP %s: socket is a %T", addr, packets), packets.Close())
	}
	w.mu.Lock()
	w.listeners = append(w.listeners, conn)
	w.mu.Unlock()
	w.tasks.Go(func() { w.acceptUDP(ctx, conn, g) })
	return nil
}

// shareAddress lets each client have a socket of its own on the server's
// address. A datagram goes to the one that is connected to its sender.
func shareAddress(_, _ string, c syscall.RawConn) error {
	var setErr error
	if err := c.Control(func(fd uintptr) {
		setErr = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	}); err != nil {
		return err
	}
	return setErr
}

// acceptUDP serves each client that greets on a thread of its own, until the
// listening socket is closed. What is no greeting is passed over.
func (w *worker) acceptUDP(ctx context.Context, conn *net.UDPConn, g *guard) {
	buf := make([]byte, maxDatagram)
	local := udpLocal(conn)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		d, ok := parseDatagram(buf[:n])
		if !ok || d.kind != datagramHello || !g.admits(from.Addr()) {
			continue
		}
		a, err := decodeHeader(buf[MinDatagram:n])
		if err != nil || a.load.network() != "udp" {
			continue
		}
		from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
		refuse := func(err error) {
			refusal := datagram{kind: datagramRefusal, flow: d.flow}.with([]byte(err.Error()))
			_, _ = conn.WriteToUDPAddrPort(refusal, from)
		}
		if err := g.check(a.spec); err != nil {
			refuse(err)
			continue
		}
		if !w.claim(d.flow, g) {
			continue
		}
		w.tasks.Go(func() {
			defer w.release(d.flow)
			s, err := answerUDP(a.spec, local, from, d.flow)
			if err != nil {
				refuse(err)
				return
			}
			ctx, cancel := g.bound(ctx, a.spec)
			defer cancel()
			w.serveUDP(ctx, s, a)
		})
	}
}

// udpLocal returns a socket's own address, IPv4 in its short form.
func udpLocal(conn *net.UDPConn) netip.AddrPort {
	local, ok := conn.LocalAddr().(*net.UDPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	ap := local.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

// claim takes a flow, unless it is being served or there are as many as the guard
// allows.
func (w *worker) claim(flow uint64, g *guard) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if most := g.most(); w.flows[flow] || most > 0 && w.inside >= most {
		return false
	}
	w.flows[flow] = true
	w.inside++
	return true
}

// release forgets a flow.
func (w *worker) release(flow uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.flows, flow)
	w.inside--
}

// answerUDP opens the socket for one client.
func answerUDP(spec Spec, local, peer netip.AddrPort, flow uint64) (_ *session, err error) {
	s, err := newUDPSession(spec, local.Addr())
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	s.flow = flow
	if err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return nil, fmt.Errorf("share the server's address: %w", err)
	}
	// Until it is connected, the socket would take what others send as greetings.
	if err := s.deafen(); err != nil {
		return nil, err
	}
	if err := unix.Bind(s.fd, sockaddr(local)); err != nil {
		return nil, fmt.Errorf("bind to %s: %w", local, err)
	}
	if err := s.connectUDP(peer); err != nil {
		return nil, err
	}
	if err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0); err != nil {
		return nil, fmt.Errorf("detach filter: %w", err)
	}
	s.passedOver = s.drops()
	return s, nil
}

// deafen makes the socket take nothing, by a filter that keeps 0 bytes of each
// datagram.
func (s *session) deafen() error {
	nothing := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K}
	if err := unix.SetsockoptSockFprog(s.fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: 1, Filter: &nothing}); err != nil {
		return fmt.Errorf("attach filter: %w", err)
	}
	return nil
}

// serveUDP serves one client. What goes wrong is in the last figures' Error.
func (w *worker) serveUDP(ctx context.Context, s *session, a announcement) {
	w.begin()
	defer w.end()
	defer s.close()
	defer context.AfterFunc(ctx, s.interrupt)()
	_ = w.seat.run(func() error {
		return w.part(s, a, func() error {
			if err := s.welcome(); err != nil {
				return err
			}
			return a.load.serve(s)
		})
	})
}

// welcome tells the client that this socket is its own.
func (s *session) welcome() error {
	return s.send(datagram{kind: datagramWelcome, flow: s.flow}.with(nil))
}
