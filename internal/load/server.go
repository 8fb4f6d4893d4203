// SPDX-License-Identifier: Apache-2.0

package load

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// listenAttempts is the number of attempts to find a port that is free for TCP and UDP.
const listenAttempts = 10

// listen opens a server on addr, TCP and UDP, and returns its address. Port 0 asks for
// any.
func (w *worker) listen(ctx context.Context, addr netip.AddrPort) (netip.AddrPort, error) {
	for attempt := 1; ; attempt++ {
		listener, err := listenTCP(ctx, addr)
		if err != nil {
			return netip.AddrPort{}, err
		}
		assigned := unmapped(listener.Addr())
		err = w.listenUDP(ctx, assigned)
		if err == nil {
			w.mu.Lock()
			w.listeners = append(w.listeners, listener)
			w.mu.Unlock()
			w.tasks.Go(func() { w.accept(ctx, listener) })
			return assigned, nil
		}
		_ = listener.Close()
		if addr.Port() != 0 || attempt == listenAttempts || !errors.Is(err, unix.EADDRINUSE) {
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
func (w *worker) accept(ctx context.Context, listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		tcp, ok := conn.(*net.TCPConn)
		if !ok {
			_ = conn.Close()
			continue
		}
		w.tasks.Go(func() { w.serveTCP(ctx, tcp) })
	}
}

// serveTCP serves one connection. Errors after a valid header are kept as the last
// figures' Error. Other clients leave no trace.
func (w *worker) serveTCP(ctx context.Context, conn *net.TCPConn) {
	h, err := readHeader(ctx, conn)
	if err != nil || h.workload.network() != "tcp" {
		_ = conn.Close()
		return
	}
	w.begin()
	defer w.end()
	s, err := newSession(conn, h.spec)
	if err != nil {
		return
	}
	defer s.close()
	defer context.AfterFunc(ctx, s.interrupt)()
	_ = w.thread.run(func() error {
		return w.serve(s, h, func() error {
			if err := s.useCongestion(h.spec.Congestion); err != nil {
				return err
			}
			if err := s.run.await(s); err != nil {
				return err
			}
			return h.workload.serve(s)
		})
	})
}

// headerTimeout is the time that a client has to send its header.
const headerTimeout = 5 * time.Second

// readHeader reads a client's header. It holds no thread while it waits.
func readHeader(ctx context.Context, conn *net.TCPConn) (header, error) {
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if err := conn.SetDeadline(time.Now().Add(headerTimeout)); err != nil {
		return header{}, err
	}
	b := make([]byte, headerSize)
	if _, err := io.ReadFull(conn, b); err != nil {
		return header{}, err
	}
	return decodeHeader(b)
}
