// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// listenTries is how often a port that is free for TCP is looked for until it is
// free for UDP as well.
const listenTries = 10

// listen opens a server on addr, TCP and UDP, and returns the address that it got
// (port 0 asks for any). The guard says whom it serves.
func (w *worker) listen(ctx context.Context, addr netip.AddrPort, g *guard) (netip.AddrPort, error) {
	for try := 1; ; try++ {
		listener, err := listenTCP(ctx, addr)
		if err != nil {
			return netip.AddrPort{}, err
		}
		got := unmapped(listener.Addr())
		err = w.listenUDP(ctx, got, g)
		if err == nil {
			w.mu.Lock()
			w.listeners = append(w.listeners, listener)
			w.mu.Unlock()
			w.tasks.Go(func() { w.accept(ctx, listener, g) })
			return got, nil
		}
		_ = listener.Close()
		if addr.Port() != 0 || try == listenTries || !errors.Is(err, unix.EADDRINUSE) {
			return netip.AddrPort{}, err
		}
	}
}

// listenTCP opens the listening TCP socket.
func listenTCP(ctx context.Context, addr netip.AddrPort) (net.Listener, error) {
	config := net.ListenConfig{KeepAlive: -1, Control: withCongestion("")}
	// Go listens with MPTCP by default, which is another receive path.
	config.SetMultipathTCP(false)
	network := "tcp6"
	if addr.Addr().Unmap().Is4() {
		network = "tcp4"
	}
	return config.Listen(ctx, network, addr.String())
}

// closeListeners stops all servers from accepting.
func (w *worker) closeListeners() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, listener := range w.listeners {
		_ = listener.Close()
	}
}

// accept serves each connection on a thread of its own, until the listener is
// closed.
func (w *worker) accept(ctx context.Context, listener net.Listener, g *guard) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		tcp, ok := conn.(*net.TCPConn)
		if !ok || !g.admits(unmapped(conn.RemoteAddr()).Addr()) || !w.enter(g) {
			_ = conn.Close()
			continue
		}
		w.tasks.Go(func() {
			defer w.exit()
			w.serve(ctx, tcp, g)
		})
	}
}

// enter counts a connection in, unless there are as many as the guard allows.
func (w *worker) enter(g *guard) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if most := g.most(); most > 0 && w.inside >= most {
		return false
	}
	w.inside++
	return true
}

// exit counts a connection out.
func (w *worker) exit() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.inside--
}

// serve serves one connection. What goes wrong is in the last figures' Error,
// once the client has said what it wants; a stranger leaves no trace.
func (w *worker) serve(ctx context.Context, conn *net.TCPConn, g *guard) {
	a, err := readHeader(ctx, conn)
	if err != nil || a.load.network() != "tcp" {
		_ = conn.Close()
		return
	}
	if err := g.check(a.spec); err != nil {
		_ = conn.Close()
		w.setLast(Served{Workload: a.spec.Workload, Error: err.Error()})
		return
	}
	ctx, cancel := g.bound(ctx, a.spec)
	defer cancel()
	w.begin()
	defer w.end()
	s, err := newSession(conn, a.spec)
	if err != nil {
		return
	}
	defer s.close()
	defer context.AfterFunc(ctx, s.interrupt)()
	_ = w.seat.run(func() error {
		return w.part(s, a, func() error {
			if err := s.noteCongestion(a.spec.Congestion); err != nil {
				return err
			}
			if err := s.group.await(s); err != nil {
				return err
			}
			return a.load.serve(s)
		})
	})
}

// headerTimeout is how long a client that has connected may take to say what it
// wants.
const headerTimeout = 5 * time.Second

// readHeader reads what a client wants. It keeps no thread while it waits.
func readHeader(ctx context.Context, conn *net.TCPConn) (announcement, error) {
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if err := conn.SetDeadline(time.Now().Add(headerTimeout)); err != nil {
		return announcement{}, err
	}
	header := make([]byte, headerSize)
	if _, err := io.ReadFull(conn, header); err != nil {
		return announcement{}, err
	}
	return decodeHeader(header)
}

// part does a session's part of its run and notes what goes wrong.
func (w *worker) part(s *session, a announcement, do func() error) error {
	g, err := w.join(a)
	if err == nil {
		s.group = g
		err = do()
		w.leave(g, err)
	}
	if err != nil && !s.reported && !errors.Is(err, errSilent) && !errors.Is(err, errBroken) {
		r := s.served()
		r.Error = fmt.Sprintf("%s from %s: %v", s.spec.Workload, s.peer, err)
		w.setLast(r)
	}
	return err
}

// setLast keeps the figures for [Agent.Last].
func (w *worker) setLast(r Served) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = &r
}
