// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/load"
)

// Bounds of a server.
const (
	listenAttempts = 10      // to find a port that is free for TCP and UDP
	listenBacklog  = 1 << 16 // the kernel takes net.core.somaxconn, if that is less
	headerTimeout  = 5 * time.Second
)

// listen opens a server on addr, TCP and UDP, and returns its address. Port 0 selects a free port. The sockets are
// in the namespace at a path, see [load.Agent.ListenIn].
func (w *worker) listen(ctx context.Context, namespace string, addr netip.AddrPort) (netip.AddrPort, error) {
	for attempt := 1; ; attempt++ {
		var tcp, udp *session
		err := inNamespace(namespace, func() (err error) {
			if tcp, err = listenOn(unix.SOCK_STREAM, addr); err == nil {
				if udp, err = listenOn(unix.SOCK_DGRAM, tcp.local); err != nil {
					tcp.close()
				}
			}
			return err
		})
		if err == nil {
			w.mu.Lock()
			w.listeners = append(w.listeners, tcp, udp)
			w.mu.Unlock()
			a := &acceptor{session: tcp, buf: make([]byte, streamBuffer)}
			a.hand = func(fd int, begin []byte) { w.tasks.Go(func() { w.serveTCP(ctx, a, fd, begin) }) }
			// Not with the priority of load: it is idle in runs that need one.
			w.tasks.Go(func() { _ = threadConfig{CPU: w.thread.CPU}.run(a.loop) })
			w.tasks.Go(func() { w.acceptUDP(ctx, namespace, udp) })
			return tcp.local, nil
		}
		if addr.Port() != 0 || attempt == listenAttempts || !errors.Is(err, unix.EADDRINUSE) {
			return netip.AddrPort{}, err
		}
	}
}

// listenOn opens a socket on an address of one family. Accepted sockets inherit its options. Each UDP client gets a
// socket of its own on the address: the kernel delivers a datagram to the socket that is connected to its sender.
func listenOn(kind int, addr netip.AddrPort) (s *session, err error) {
	if s, err = openSession(kind, addr.Addr(), load.Spec{}); err != nil {
		return nil, err
	}
	err = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	if err == nil && !addr.Addr().Unmap().Is4() {
		err = unix.SetsockoptInt(s.fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1)
	}
	if err == nil {
		err = unix.Bind(s.fd, load.Sockaddr(addr))
	}
	if err == nil && kind == unix.SOCK_STREAM {
		err = errors.Join(setNoDelay(s.fd), unix.Listen(s.fd, listenBacklog))
	}
	var bound unix.Sockaddr
	if err == nil {
		bound, err = unix.Getsockname(s.fd)
	}
	if err != nil {
		s.close()
		return nil, fmt.Errorf("listen on %s: %w", addr, err)
	}
	s.local = load.AddrPort(bound)
	return s, nil
}

func (w *worker) closeListeners() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.listeners {
		s.interrupt()
	}
}

// serveTCP serves one connection; begin is the part of its header that has been read. If it fails, the client
// notices.
func (w *worker) serveTCP(ctx context.Context, a *acceptor, fd int, begin []byte) {
	s := &session{fd: fd, acceptor: a}
	defer s.close()
	defer context.AfterFunc(ctx, s.interrupt)()
	deadline := time.Now().Add(headerTimeout)
	read := func(b []byte) error { // it holds no thread of the Go scheduler while it waits
		for len(b) > 0 {
			if len(begin) == 0 {
				buf := make([]byte, len(b))
				if err := s.park(max(time.Until(deadline), time.Millisecond)); err != nil {
					return err
				}
				n, err := s.read(buf)
				if err != nil {
					return err
				}
				begin = buf[:n]
			}
			n := copy(b, begin)
			b, begin = b[n:], begin[n:]
		}
		return nil
	}
	if len(begin) == 0 {
		first := []byte{0}
		if err := read(first); err != nil {
			return
		}
		if first[0]&crrRequest != 0 { // a request that came late
			buf := make([]byte, streamBuffer)
			buf[0] = first[0]
			a.serve(1, fd, buf)
			return
		}
		begin = first
	}
	var h header
	if readMessage(read, &h) != nil || h.check(unix.SOCK_STREAM) != nil || s.identify() != nil {
		return
	}
	s.spec = h.Spec
	w.serve(s, func() error {
		if err := keepAlive(s.fd); err != nil {
			return err
		}
		return s.writeMessage(s.served())
	}, func(r load.Served) {
		if s.writeMessage(r) == nil {
			for buf := []byte{0}; ; { // until the client has closed its end, so that the report is not lost to a reset
				if _, err := s.read(buf); err != nil {
					return
				}
			}
		}
	})
}

// served returns a report with the session's own fields.
func (s *session) served() load.Served {
	return load.Served{Local: s.local, Peer: s.peer, Congestion: s.congestion}
}

// serve serves a flow on a thread, after a welcome, and reports what it counted.
func (w *worker) serve(s *session, welcome func() error, report func(load.Served)) {
	w.begin()
	defer w.end()
	w.raiseThreads(s.spec.FlowCount())
	_ = w.thread.run(func() error {
		if err := welcome(); err != nil {
			return err
		}
		r, err := lookup(s.spec.Workload).serve(s)
		if err == nil {
			report(r)
		}
		return err
	})
}

// acceptUDP serves each client that sends a hello on a thread of its own, until the listening socket is interrupted.
// It ignores other datagrams.
func (w *worker) acceptUDP(ctx context.Context, namespace string, listener *session) {
	defer listener.close()
	buf := make([]byte, load.MaxDatagram)
	for listener.park(0) == nil {
		n, sender, err := unix.Recvfrom(listener.fd, buf, unix.MSG_DONTWAIT)
		d, ok := parseDatagram(buf[:max(n, 0)])
		if err != nil || !ok || d.kind != datagramHello {
			continue
		}
		var h header
		if decode(buf[load.MinDatagram:n], &h) != nil || h.check(unix.SOCK_DGRAM) != nil {
			continue
		}
		if _, served := w.flows.LoadOrStore(d.flow, true); served {
			continue
		}
		from := load.AddrPort(sender)
		w.tasks.Go(func() {
			defer w.flows.Delete(d.flow)
			var s *session
			if err := inNamespace(namespace, func() (err error) {
				s, err = answerUDP(h.Spec, listener.local, from, d.flow)
				return err
			}); err != nil {
				return // its client hears nothing
			}
			defer s.close()
			defer context.AfterFunc(ctx, s.interrupt)()
			w.serve(s, s.welcome, func(load.Served) {})
		})
	}
}

// answerUDP opens the server's socket for one client.
func answerUDP(spec load.Spec, local, peer netip.AddrPort, flow uint64) (s *session, err error) {
	if s, err = listenOn(unix.SOCK_DGRAM, local); err != nil {
		return nil, err
	}
	s.spec, s.number = spec, flow
	if err = s.connect(s.fd, newRawAddress(peer)); err == nil {
		err = s.identify()
	}
	if err != nil {
		s.close()
		return nil, err
	}
	for buf := make([]byte, load.MaxDatagram); err == nil; { // what others sent before it was connected
		_, _, err = unix.Recvfrom(s.fd, buf, unix.MSG_DONTWAIT)
	}
	return s, nil
}
