// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/load"
)

// dialUDP opens the client's UDP socket. A missing server is noticed in the handshake.
func dialUDP(spec load.Spec) (_ *session, err error) {
	s, err := newUDPSession(spec, spec.Target.Addr())
	if err != nil {
		return nil, err
	}
	s.number = rand.Uint64()
	if err := s.connectUDP(spec.Target); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// handshakeUDP sends the header until the server answers, and returns its answer.
func (s *session) handshakeUDP(header []byte) (load.Served, error) {
	buf := make([]byte, load.MaxDatagram)
	d, n, err := s.ask(datagram{kind: datagramHello, flow: s.number}.with(header), buf, datagramWelcome, datagramRefusal)
	switch {
	case err != nil:
		return load.Served{}, fmt.Errorf("connect: %w", err)
	case d.kind == datagramRefusal:
		return load.Served{}, fmt.Errorf("server: %s", load.Printable(string(buf[load.MinDatagram:n])))
	}
	return decodeReport(buf[load.MinDatagram:n])
}

// endUDP tells the server that the window is over until it answers with the report.
func (s *session) endUDP() (load.Served, error) {
	end, buf := datagram{kind: datagramEnd, flow: s.number}, make([]byte, load.MaxDatagram)
	_, n, err := s.ask(end.with(nil), buf, datagramReport)
	if err != nil {
		return load.Served{}, fmt.Errorf("read report: %w", err)
	}
	end.kind = datagramBye
	if err := s.send(end.with(nil)); err != nil {
		return load.Served{}, err
	}
	return decodeReport(buf[load.MinDatagram:n])
}

// ask sends a datagram, again and again, until the server answers with one of the wanted
// kinds and the same number, of n bytes in buf.
func (s *session) ask(question, buf []byte, wanted ...byte) (d datagram, n int, err error) {
	asked, _ := parseDatagram(question)
	for start := time.Now(); time.Since(start) <= s.spec.StallTime(); {
		if err := s.send(question); err != nil {
			return datagram{}, 0, err
		}
		for {
			d, n, err := s.receiveOnce(buf)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil || d.number == asked.number && slices.Contains(wanted, d.kind) {
				return d, n, err
			}
		}
	}
	return datagram{}, 0, fmt.Errorf("no answer for %v: %w", s.spec.StallTime().Round(time.Millisecond), unix.ETIMEDOUT)
}

// listenUDP opens a UDP server on addr with a port, inside the namespace at a path.
func (w *worker) listenUDP(ctx context.Context, namespace string, addr netip.AddrPort) error {
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
	w.tasks.Go(func() { w.acceptUDP(ctx, namespace, conn) })
	return nil
}

// acceptUDP serves each client that says hello on a thread of its own, until the
// listening socket is closed. It ignores other datagrams.
func (w *worker) acceptUDP(ctx context.Context, namespace string, conn *net.UDPConn) {
	buf := make([]byte, load.MaxDatagram)
	local := unmapped(conn.LocalAddr())
	for {
		n, from, err := conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		d, ok := parseDatagram(buf[:n])
		if !ok || d.kind != datagramHello {
			continue
		}
		h, err := decodeHeader(buf[load.MinDatagram:n])
		if err != nil || h.workload.network != "udp" || !w.claim(d.flow) {
			continue
		}
		from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
		w.tasks.Go(func() {
			defer w.release(d.flow)
			var s *session
			err := inNamespace(namespace, func() (err error) {
				s, err = answerUDP(h.spec, local, from, d.flow)
				return err
			})
			if err != nil {
				refusal := datagram{kind: datagramRefusal, flow: d.flow}.with([]byte(err.Error()))
				_, _ = conn.WriteToUDPAddrPort(refusal, from)
				return
			}
			w.begin()
			defer w.end()
			defer s.close()
			w.serve(ctx, s, h.workload)
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

func (w *worker) release(flow uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.flows, flow)
}

// answerUDP opens the server's socket for one client.
func answerUDP(spec load.Spec, local, peer netip.AddrPort, flow uint64) (_ *session, err error) {
	s, err := newUDPSession(spec, local.Addr())
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	s.number = flow
	if err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return nil, fmt.Errorf("share the server's address: %w", err)
	}
	// Until it is connected, the socket would get other clients' hellos.
	if err := attachDropFilter(s.fd); err != nil {
		return nil, err
	}
	if err := unix.Bind(s.fd, load.Sockaddr(local)); err != nil {
		return nil, fmt.Errorf("bind to %s: %w", local, err)
	}
	if err := s.connectUDP(peer); err != nil {
		return nil, err
	}
	if err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0); err != nil {
		return nil, fmt.Errorf("detach filter: %w", err)
	}
	return s, nil
}

func (s *session) tell(kind byte, r load.Served) error {
	body, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode report: %w", err)
	}
	return s.send(datagram{kind: kind, flow: s.number}.with(body))
}

// welcome tells the client that the server has a socket for it.
func (s *session) welcome() error { return s.tell(datagramWelcome, s.served()) }

// reportUDP sends the report as often as the client asks for it, until it has arrived.
func (s *session) reportUDP(r load.Served) {
	buf := make([]byte, load.MaxDatagram)
	for last := byte(datagramEnd); last != datagramBye; {
		if last == datagramEnd && s.tell(datagramReport, r) != nil {
			return
		}
		d, _, err := s.receive(buf)
		if err != nil {
			return
		}
		last = d.kind
	}
}
