// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/datapath/conntrack"
	"mustang/internal/service"
)

// callAll lets each member call each pod and the node, and pods' services, and returns when all calls have an end.
func (m *matrix) callAll(t *testing.T) []outgoing {
	t.Helper()
	if _, err := m.ConnectionTable().Flush(t.Context(), conntrack.Filter{}); err != nil { // datagrams have no end
		t.Fatal(err)
	}
	var all []outgoing
	for i := range m.members {
		succeed(t, m.members[i].ns.Do(func() error { return m.start(i, &all) }))
	}
	left, again := len(all), time.Now().Add(time.Second)
	for deadline := time.Now().Add(20 * time.Second); left > 0 && time.Now().Before(deadline); {
		m.poll(all)
		if time.Now().After(again) { // a datagram may get lost
			for _, a := range all {
				if a.fd >= 0 && a.protocol == service.UDP {
					_, _ = unix.Write(a.fd, []byte("x"))
				}
			}
			again = time.Now().Add(time.Second)
		}
		left = 0
		m.mutex.Lock()
		for i := range all {
			a := &all[i]
			if a.fd >= 0 && m.denied[call{a.from, a.backend, a.protocol}] {
				_ = unix.Close(a.fd)
				a.fd = refusedByPolicy
			}
			if a.fd >= 0 {
				left++
			}
		}
		m.mutex.Unlock()
	}
	for i := range all {
		if a := &all[i]; a.fd >= 0 {
			_ = unix.Close(a.fd)
			a.fd = unanswered
		}
	}
	return all
}

// start begins all calls of a member.
func (m *matrix) start(from int, all *[]outgoing) error {
	for _, p := range m.protocols {
		for i, to := range m.members {
			for _, addr := range to.addresses {
				for _, port := range matrixPorts {
					target := netip.AddrPortFrom(addr, port)
					if i == from { // over loopback
						continue
					}
					if err := m.startOne(outgoing{call: call{to: target, protocol: p}, backend: target, member: from}, all); err != nil {
						return err
					}
				}
			}
		}
		if p == service.SCTP || from == len(m.members)-1 { // the node has no socket translation here
			continue
		}
		for frontend, backend := range m.services {
			if backend.Addr() == m.members[from].addresses[0] || backend.Addr() == m.members[from].addresses[1] {
				continue
			}
			if err := m.startOne(outgoing{call: call{to: frontend, protocol: p}, backend: backend, member: from}, all); err != nil {
				return err
			}
		}
	}
	return nil
}

func (m *matrix) startOne(a outgoing, all *[]outgoing) error {
	family := unix.AF_INET6
	var to unix.Sockaddr = &unix.SockaddrInet6{Addr: a.to.Addr().As16(), Port: int(a.to.Port())}
	if a.to.Addr().Is4() {
		family, to = unix.AF_INET, &unix.SockaddrInet4{Addr: a.to.Addr().As4(), Port: int(a.to.Port())}
	}
	fd, err := openSocket(family, a.protocol)
	if err != nil {
		return err
	}
	a.fd = fd
	if err := m.bindNext(fd, family); err != nil {
		return err
	}
	if err := unix.Connect(fd, to); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return fmt.Errorf("connect to %s: %w", a.to, err)
	}
	if a.protocol == service.UDP {
		_, err = unix.Write(fd, []byte("x"))
	} else {
		err = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	}
	if err != nil {
		return err
	}
	local, err := unix.Getsockname(fd)
	if err != nil {
		return err
	}
	switch l := local.(type) {
	case *unix.SockaddrInet4:
		a.from = netip.AddrPortFrom(netip.AddrFrom4(l.Addr), uint16(l.Port))
	case *unix.SockaddrInet6:
		a.from = netip.AddrPortFrom(netip.AddrFrom16(l.Addr), uint16(l.Port))
	}
	*all = append(*all, a)
	return nil
}

// poll waits some milliseconds for sockets, and serves those that are ready.
func (m *matrix) poll(all []outgoing) {
	var fds []unix.PollFd
	for i := range m.members {
		for _, s := range m.members[i].listening {
			fds = append(fds, unix.PollFd{Fd: int32(s.fd), Events: unix.POLLIN})
		}
	}
	servers := len(fds)
	var waiting []int
	for i, a := range all {
		if a.fd < 0 {
			continue
		}
		events := int16(unix.POLLOUT)
		if a.protocol == service.UDP {
			events = unix.POLLIN
		}
		fds, waiting = append(fds, unix.PollFd{Fd: int32(a.fd), Events: events}), append(waiting, i)
	}
	if n, err := unix.Poll(fds, 5); err != nil || n == 0 {
		return
	}
	for i, at := range waiting {
		if a := &all[at]; fds[servers+i].Revents != 0 {
			code, err := unix.GetsockoptInt(a.fd, unix.SOL_SOCKET, unix.SO_ERROR)
			_ = unix.Close(a.fd)
			a.fd = answered
			if err != nil || code != 0 {
				a.fd = unanswered
			}
		}
	}
	i := 0
	for _, on := range m.members {
		for _, s := range on.listening {
			if fds[i].Revents != 0 {
				s.serve()
			}
			i++
		}
	}
}

// serve accepts connections, or answers datagrams.
func (s server) serve() {
	var buffer [16]byte
	for {
		if s.protocol != service.UDP {
			fd, _, err := unix.Accept(s.fd)
			if err != nil {
				return
			}
			_ = unix.Close(fd)
			continue
		}
		n, from, err := unix.Recvfrom(s.fd, buffer[:], 0)
		if err != nil {
			return
		}
		_ = unix.Sendto(s.fd, buffer[:n], 0, from)
	}
}

// bindNext binds a socket to a port of its own: a connection to a service and another to its backend may not have the same.
func (m *matrix) bindNext(fd, family int) error {
	m.port = max(m.port, 10000)%50000 + 1
	if family == unix.AF_INET {
		return unix.Bind(fd, &unix.SockaddrInet4{Port: m.port})
	}
	return unix.Bind(fd, &unix.SockaddrInet6{Port: m.port})
}
