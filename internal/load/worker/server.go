// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/load"
)

// listenAttempts is the number of attempts to find a port that is free for TCP and UDP.
const listenAttempts = 10

// listen opens a server on addr, TCP and UDP, and returns its address. Port 0 asks for
// any. The sockets are in the namespace at a path, see [load.Agent.ListenIn].
func (w *worker) listen(ctx context.Context, namespace string, addr netip.AddrPort) (assigned netip.AddrPort, err error) {
	err = inNamespace(namespace, func() error {
		assigned, err = w.listenHere(ctx, namespace, addr)
		return err
	})
	return assigned, err
}

// listenHere is listen inside the namespace.
func (w *worker) listenHere(ctx context.Context, namespace string, addr netip.AddrPort) (netip.AddrPort, error) {
	for attempt := 1; ; attempt++ {
		listener, err := listenTCP(ctx, addr)
		if err != nil {
			return netip.AddrPort{}, err
		}
		assigned := unmapped(listener.Addr())
		err = w.listenUDP(ctx, namespace, assigned)
		if err == nil {
			return assigned, w.serveAccepted(ctx, listener)
		}
		_ = listener.Close()
		if addr.Port() != 0 || attempt == listenAttempts || !errors.Is(err, unix.EADDRINUSE) {
			return netip.AddrPort{}, err
		}
	}
}

func listenTCP(ctx context.Context, addr netip.AddrPort) (*net.TCPListener, error) {
	config := net.ListenConfig{KeepAlive: -1, Control: setCongestion}
	// Go listens with MPTCP by default, which is another receive path.
	config.SetMultipathTCP(false)
	network := "tcp6"
	if addr.Addr().Unmap().Is4() {
		network = "tcp4"
	}
	listener, err := config.Listen(ctx, network, addr.String())
	if err != nil {
		return nil, err
	}
	tcp, ok := listener.(*net.TCPListener)
	if !ok {
		return nil, errors.Join(fmt.Errorf("listen on TCP %s: socket is a %T", addr, listener), listener.Close())
	}
	return tcp, nil
}

func (w *worker) closeListeners() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, listener := range w.listeners {
		_ = listener.Close()
	}
}

// serveTCP serves one connection. Its client notices if that fails.
func (w *worker) serveTCP(ctx context.Context, a accepted) {
	conn := a.conn
	if len(a.begin) == 0 {
		a.begin = []byte{0}
		if err := readFrom(ctx, conn, a.begin); err != nil {
			_ = conn.Close()
			return
		}
		if a.begin[0]&crrRequest != 0 {
			a.by.serveLate(conn, a.begin[0])
			return
		}
	}
	h, err := readHeader(ctx, a)
	if err != nil || h.workload.network != "tcp" {
		_ = conn.Close()
		return
	}
	w.begin()
	defer w.end()
	s, err := newSession(conn, h.spec)
	if err != nil {
		return
	}
	s.acceptor = a.by
	defer s.close()
	w.serve(ctx, s, h.workload)
}

// serve serves a flow on a thread.
func (w *worker) serve(ctx context.Context, s *session, served workload) {
	defer context.AfterFunc(ctx, s.interrupt)()
	w.raiseThreads(s.spec.Flows)
	_ = w.thread.run(func() error {
		acknowledge, report := s.acknowledge, s.report
		if served.network == "udp" {
			acknowledge, report = s.welcome, s.reportUDP
		}
		if err := acknowledge(); err != nil {
			return err
		}
		r, err := served.serve(s)
		if err == nil {
			report(r)
		}
		return err
	})
}

// acknowledge answers a header over TCP.
func (s *session) acknowledge() error {
	if err := keepAlive(s.fd); err != nil {
		return err
	}
	return s.sendReport(s.served())
}

// report sends the report over TCP, and waits until the client has it.
func (s *session) report(r load.Served) {
	if s.sendReport(r) == nil {
		s.drain()
	}
}

// accepted is a connection, with the bytes of its header that have been read.
type accepted struct {
	conn  *net.TCPConn
	begin []byte
	by    *acceptor
}

func readHeader(ctx context.Context, a accepted) (header, error) {
	b := make([]byte, headerSize)
	if err := readFrom(ctx, a.conn, b[copy(b, a.begin):]); err != nil {
		return header{}, err
	}
	return decodeHeader(b)
}

// headerTimeout is the time that a client has to send its header.
const headerTimeout = 5 * time.Second

// readFrom reads the beginning of a connection. It holds no thread while it waits.
func readFrom(ctx context.Context, conn *net.TCPConn, b []byte) error {
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if err := conn.SetDeadline(time.Now().Add(headerTimeout)); err != nil {
		return err
	}
	_, err := io.ReadFull(conn, b)
	return err
}
