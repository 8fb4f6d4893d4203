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
func (w *worker) listenUDP(ctx context.Context, addr netip.AddrPort) error {
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
	w.tasks.Go(func() { w.acceptUDP(ctx, conn, addr) })
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
func (w *worker) acceptUDP(ctx context.Context, conn *net.UDPConn, local netip.AddrPort) {
	buf := make([]byte, maxDatagram)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		d, ok := parseDatagram(buf[:n])
		if !ok || d.kind != datagramHello {
			continue
		}
		a, err := decodeHeader(buf[MinDatagram:n])
		if err != nil || a.load.network() != "udp" || !w.claim(d.flow) {
			continue
		}
		from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
		w.tasks.Go(func() {
			defer w.release(d.flow)
			s, err := answerUDP(a.spec, local, from, d.flow)
			if err != nil {
				refusal := datagram{kind: datagramRefusal, flow: d.flow}.with([]byte(err.Error()))
				_, _ = conn.WriteToUDPAddrPort(refusal, from)
				return
			}
			w.serveUDP(ctx, s, a)
		})
	}
}

// claim takes a flow, unless it is being served.
func (w *worker) claim(flow uint64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.flows[flow] {
		return false
	}
	w.flows[flow] = true
	return true
}

// release forgets a flow.
func (w *worker) release(flow uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.flows, flow)
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
