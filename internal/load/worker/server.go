// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/load"
	"mustang/internal/netns"
)

const (
	listenAttempts = 10      // to find a port that is free for TCP and UDP
	listenBacklog  = 1 << 16 // the kernel takes net.core.somaxconn, if that is less
	headerTimeout  = 5 * time.Second
)

// listen opens a server on addr, TCP and UDP, and returns its address. Port 0 selects a free port. The sockets are
// in the namespace at a path, see [load.Agent.ListenIn].
func (w *worker) listen(ctx context.Context, path string, addr netip.AddrPort) (netip.AddrPort, error) {
	namespace, err := openNamespace(path)
	if err != nil {
		return netip.AddrPort{}, err
	}
	if namespace != nil {
		w.namespaces = append(w.namespaces, namespace)
	}
	var tcp, udp *session
	for attempt := 1; ; attempt++ {
		err := inNamespace(namespace, func() (err error) {
			if tcp, err = listenOn(unix.SOCK_STREAM, addr, w.congestion); err == nil {
				if udp, err = listenOn(unix.SOCK_DGRAM, tcp.Local, ""); err != nil {
					tcp.close()
				}
			}
			return err
		})
		if err == nil {
			break
		}
		if addr.Port() != 0 || attempt == listenAttempts || !errors.Is(err, unix.EADDRINUSE) {
			return netip.AddrPort{}, err
		}
	}
	w.listeners = append(w.listeners, tcp, udp)
	a := &acceptor{session: tcp, buf: make([]byte, streamBuffer)}
	a.hand = func(fd int, begin []byte) { w.tasks.Go(func() { w.serveTCP(ctx, a, fd, begin) }) }
	// Not with the priority of load: it is idle in runs that need one.
	w.tasks.Go(func() { _ = threadConfig{CPU: w.thread.CPU}.run(a.loop) })
	w.tasks.Go(func() { w.acceptUDP(ctx, namespace, udp) })
	return tcp.Local, nil
}

// listenOn opens a socket on an address of one family. Accepted sockets inherit its options. Each UDP client gets a
// socket of its own on the address: the kernel delivers a datagram to the socket that is connected to its sender.
func listenOn(kind int, addr netip.AddrPort, congestionControl string) (s *session, err error) {
	if s, err = openSession(kind, addr.Addr(), load.Spec{}, congestionControl); err != nil {
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
		err = unix.Listen(s.fd, listenBacklog)
	}
	var bound unix.Sockaddr
	if err == nil {
		bound, err = unix.Getsockname(s.fd)
	}
	if err != nil {
		s.close()
		return nil, fmt.Errorf("listen on %s: %w", addr, err)
	}
	s.Local = load.AddrPort(bound)
	return s, nil
}

// serveTCP serves one connection; begin is the part of its header that has been read. If it fails, the client notices.
func (w *worker) serveTCP(ctx context.Context, a *acceptor, fd int, begin []byte) {
	s := &session{fd: fd, acceptor: a}
	defer s.close()
	defer context.AfterFunc(ctx, s.interrupt)()
	if len(begin) == 0 {
		if s.park(headerTimeout) != nil {
			return
		}
		buf := make([]byte, streamBuffer)
		n, err := s.Read(buf)
		if err != nil {
			return
		}
		if begin = buf[:n]; begin[0]&crrRequest != 0 { // the first request of a tcp_crr connection came late
			a.serve(n, fd, buf)
			return
		}
	}
	var h header
	if readMessage(io.MultiReader(bytes.NewReader(begin), s), &h) != nil || h.check(unix.SOCK_STREAM) != nil ||
		s.identify() != nil || keepAlive(fd) != nil {
		return
	}
	s.spec = h.Spec
	w.serve(s)
}

// serve serves a flow on a thread. Over TCP the server's report follows.
func (w *worker) serve(s *session) {
	w.begin(s.spec.FlowCount())
	defer w.end()
	_ = w.thread.run(func() error {
		err := lookup(s.spec.Workload).serve(s)
		if err == nil && s.acceptor != nil {
			err = s.writeMessage(s.Served)
			for err == nil { // until the client has closed its end, so that no reset discards the report
				_, err = s.Read([]byte{0})
			}
		}
		return err
	})
}

// acceptUDP serves each client that sends a hello on a thread of its own, until the listening socket is interrupted.
// It ignores other datagrams.
func (w *worker) acceptUDP(ctx context.Context, namespace *netns.Namespace, listener *session) {
	defer listener.close()
	buf := make([]byte, load.MaxDatagram)
	for listener.park(0) == nil {
		n, sender, err := unix.Recvfrom(listener.fd, buf, unix.MSG_DONTWAIT)
		d, ok := parseDatagram(buf[:max(n, 0)])
		if err != nil || !ok || d.kind != datagramHello {
			continue
		}
		var h header
		if json.Unmarshal(buf[load.MinDatagram:n], &h) != nil || h.check(unix.SOCK_DGRAM) != nil {
			continue
		}
		if _, served := w.flows.LoadOrStore(d.flow, true); served {
			continue
		}
		var s *session
		if inNamespace(namespace, func() (err error) {
			s, err = answerUDP(h.Spec, listener.Local, load.AddrPort(sender))
			return err
		}) != nil {
			w.flows.Delete(d.flow)
			continue // the client gets no answer and times out
		}
		s.number = d.flow
		w.tasks.Go(func() {
			defer w.flows.Delete(d.flow)
			defer s.close()
			defer context.AfterFunc(ctx, s.interrupt)()
			w.serve(s)
		})
	}
}

func answerUDP(spec load.Spec, local, peer netip.AddrPort) (s *session, err error) {
	if s, err = listenOn(unix.SOCK_DGRAM, local, ""); err != nil {
		return nil, err
	}
	s.spec = spec
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
