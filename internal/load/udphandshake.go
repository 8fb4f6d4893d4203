// SPDX-License-Identifier: Apache-2.0

package load

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// dialUDP opens the client's UDP socket. A missing server is noticed in greetUDP.
func dialUDP(spec Spec) (_ *session, err error) {
	s, err := newUDPSession(spec, spec.Target.Addr())
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	s.flow = rand.Uint64()
	if !spec.Unconnected {
		return s, s.connectUDP(spec.Target)
	}
	return s, s.setDestination()
}

// setDestination makes the session pass the spec's target with each datagram. It binds
// the socket to the address that a connected one would have.
func (s *session) setDestination() error {
	connected, err := newUDPSession(s.spec, s.spec.Target.Addr())
	if err != nil {
		return err
	}
	defer connected.close()
	if err := connected.connectUDP(s.spec.Target); err != nil {
		return err
	}
	if err := unix.Bind(s.fd, sockaddr(netip.AddrPortFrom(connected.local.Addr(), 0))); err != nil {
		return fmt.Errorf("bind to %s: %w", connected.local.Addr(), err)
	}
	// Without this option, ICMP errors are reported to connected sockets only.
	level, option := unix.IPPROTO_IPV6, unix.IPV6_RECVERR
	target := s.spec.Target.Addr().Unmap()
	s.to = rawSockaddr(s.spec.Target)
	if target.Is4() {
		level, option = unix.IPPROTO_IP, unix.IP_RECVERR
	}
	if err := unix.SetsockoptInt(s.fd, level, option, 1); err != nil {
		return fmt.Errorf("enable socket errors: %w", err)
	}
	return s.readLocal()
}

// greetUDP sends the header until the server answers.
func (s *session) greetUDP(header []byte) error {
	d, body, err := s.ask(datagram{kind: datagramHello, flow: s.flow}.with(header), datagramWelcome, datagramRefusal)
	switch {
	case err != nil:
		return fmt.Errorf("connect: %w", err)
	case d.kind == datagramRefusal:
		return fmt.Errorf("server: %s", printable(string(body)))
	}
	return nil
}

// endUDP tells the server that the window is over until it answers with the report.
func (s *session) endUDP() (Served, error) {
	end := datagram{kind: datagramEnd, flow: s.flow}
	_, body, err := s.ask(end.with(nil), datagramReport)
	if err != nil {
		return Served{}, fmt.Errorf("read report: %w", err)
	}
	end.kind = datagramBye
	if err := s.send(end.with(nil)); err != nil {
		return Served{}, err
	}
	return decodeReport(body)
}

// ask sends a datagram, again and again, until the server answers with one of the wanted
// kinds. The sender of the answer becomes the peer of an unconnected socket.
func (s *session) ask(question []byte, wanted ...byte) (datagram, []byte, error) {
	buf := make([]byte, maxDatagram)
	for start := time.Now(); ; {
		if err := s.send(question); err != nil {
			return datagram{}, nil, err
		}
		for {
			n, from, err := unix.Recvfrom(s.fd, buf, 0)
			if s.stopped.Load() {
				return datagram{}, nil, errCancelled
			}
			if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
				break
			}
			if err != nil {
				return datagram{}, nil, os.NewSyscallError("recvfrom", err)
			}
			d, ok := parseDatagram(buf[:n])
			for _, kind := range wanted {
				if ok && d.flow == s.flow && d.kind == kind {
					if s.to != nil {
						s.peer = addrPort(from)
					}
					return d, buf[MinDatagram:n], nil
				}
			}
		}
		if time.Since(start) > s.spec.stall() {
			return datagram{}, nil, fmt.Errorf("no answer for %v: %w", s.spec.stall().Round(time.Millisecond), unix.ETIMEDOUT)
		}
	}
}

// listenUDP opens a UDP server on addr with a port.
func (w *worker) listenUDP(ctx context.Context, addr netip.AddrPort) error {
	config := net.ListenConfig{Control: reuseAddress}
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
	w.tasks.Go(func() { w.acceptUDP(ctx, conn) })
	return nil
}

// reuseAddress lets each client have a socket of its own on the server's address. The
// kernel delivers a datagram to the socket that is connected to its sender.
func reuseAddress(_, _ string, c syscall.RawConn) error {
	var setErr error
	if err := c.Control(func(fd uintptr) {
		setErr = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	}); err != nil {
		return err
	}
	return setErr
}

// acceptUDP serves each client that greets on a thread of its own, until the
// listening socket is closed. It ignores other datagrams.
func (w *worker) acceptUDP(ctx context.Context, conn *net.UDPConn) {
	buf := make([]byte, maxDatagram)
	local := udpLocal(conn)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		d, ok := parseDatagram(buf[:n])
		if !ok || d.kind != datagramHello {
			continue
		}
		h, err := decodeHeader(buf[MinDatagram:n])
		if err != nil || h.workload.network() != "udp" || !w.claim(d.flow) {
			continue
		}
		from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
		w.tasks.Go(func() {
			defer w.release(d.flow)
			s, err := answerUDP(h.spec, local, from, d.flow)
			if err != nil {
				refusal := datagram{kind: datagramRefusal, flow: d.flow}.with([]byte(err.Error()))
				_, _ = conn.WriteToUDPAddrPort(refusal, from)
				return
			}
			w.serveUDP(ctx, s, h)
		})
	}
}

// udpLocal returns a socket's own address, unmapped.
func udpLocal(conn *net.UDPConn) netip.AddrPort {
	local, ok := conn.LocalAddr().(*net.UDPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	ap := local.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
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

// answerUDP opens the server's socket for one client.
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
	// Until it is connected, the socket would get other clients' greetings.
	if err := s.attachDropFilter(); err != nil {
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
	s.baseDrops = s.drops()
	return s, nil
}

// attachDropFilter makes the socket drop all datagrams.
func (s *session) attachDropFilter() error {
	drop := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K} // keeps 0 bytes
	if err := unix.SetsockoptSockFprog(s.fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: 1, Filter: &drop}); err != nil {
		return fmt.Errorf("attach filter: %w", err)
	}
	return nil
}

// serveUDP serves one client. Its error is in the last figures.
func (w *worker) serveUDP(ctx context.Context, s *session, h header) {
	w.begin()
	defer w.end()
	defer s.close()
	defer context.AfterFunc(ctx, s.interrupt)()
	_ = w.thread.run(func() error {
		return w.serve(s, h, func() error {
			if err := s.welcome(); err != nil {
				return err
			}
			return h.workload.serve(s)
		})
	})
}

// welcome tells the client that the server has a socket for it.
func (s *session) welcome() error {
	return s.send(datagram{kind: datagramWelcome, flow: s.flow}.with(nil))
}
