// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// dialUDP opens the client's UDP socket. Whether there is a server shows when it
// is greeted.
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
	return s, s.unconnected()
}

// unconnected makes the session send each datagram to the spec's target by name.
// Its socket is bound, so that its address is known.
func (s *session) unconnected() error {
	scout, err := newUDPSession(s.spec, s.spec.Target.Addr())
	if err != nil {
		return err
	}
	defer scout.close()
	if err := scout.connectUDP(s.spec.Target); err != nil {
		return err
	}
	if err := unix.Bind(s.fd, sockaddr(netip.AddrPortFrom(scout.local.Addr(), 0))); err != nil {
		return fmt.Errorf("bind to %s: %w", scout.local.Addr(), err)
	}
	// So that the socket hears that nobody listens, as a connected one would.
	level, option := unix.IPPROTO_IPV6, unix.IPV6_RECVERR
	target := s.spec.Target.Addr().Unmap()
	s.to = rawSockaddr(s.spec.Target)
	if target.Is4() {
		level, option = unix.IPPROTO_IP, unix.IP_RECVERR
	}
	if err := unix.SetsockoptInt(s.fd, level, option, 1); err != nil {
		return fmt.Errorf("ask for errors: %w", err)
	}
	return s.noteLocal()
}

// greetUDP tells the server what is to come until it answers.
func (s *session) greetUDP(header []byte) error {
	d, body, err := s.ask(datagram{kind: datagramHello, flow: s.flow}.with(header), datagramWelcome, datagramRefusal)
	switch {
	case err != nil:
		return fmt.Errorf("connect: %w", err)
	case d.kind == datagramRefusal:
		return fmt.Errorf("server: %s", body)
	}
	return nil
}

// endUDP tells the server that the window is over until it has the report.
func (s *session) endUDP() (Served, error) {
	end := datagram{kind: datagramEnd, flow: s.flow}
	_, body, err := s.ask(end.with(nil), datagramReport)
	if err != nil {
		return Served{}, fmt.Errorf("read report: %w", err)
	}
	var r Served
	if err := json.Unmarshal(body, &r); err != nil {
		return Served{}, fmt.Errorf("read report: %w", err)
	}
	end.kind = datagramBye
	if err := s.send(end.with(nil)); err != nil {
		return Served{}, err
	}
	if r.Error != "" {
		return Served{}, fmt.Errorf("server: %s", r.Error)
	}
	return r, nil
}

// ask sends a datagram, again and again, until one of the wanted kinds answers.
// Where it comes from is the peer of a socket that is not connected.
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
