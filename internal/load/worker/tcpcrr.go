// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	hdrhistogram "github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"

	"mustang/internal/load"
	"mustang/internal/netns"
)

const maxLost = 3

// connector connects, sends a request, waits for the response and closes, again and again.
// It closes first, so its ports stay in TIME_WAIT, unless the spec has it send a reset. The
// persistent connection itself carries no load. A connection on which nothing moves for the
// spec's stall time is lost: it is counted as sent, but not as received, and its time counts.
type connector struct {
	session           *session // the persistent connection
	total             *load.Measurement
	namespace         *netns.Namespace
	target            rawAddress
	congestion        []byte // to set; nil if it is the usual one
	request, response []byte
	latencies         *hdrhistogram.Histogram
	lost              int // connections in a row
	flags             byte
}

func openConnector(c *connection, s *session) (flow, error) {
	if s.Slot >= crrSlots {
		return nil, fmt.Errorf("the server's port has more than %d open connections of %s", crrSlots, load.TCPCRR)
	}
	c.total.Histogram = newHistogram()
	f := &connector{
		session: s, total: &c.total, namespace: c.namespace, target: newRawAddress(s.spec.Target),
		request: make([]byte, s.spec.RequestSize()), response: make([]byte, s.spec.ResponseSize()),
		latencies: c.total.Histogram,
	}
	if s.usual != s.Congestion {
		f.congestion = []byte(s.Congestion)
	}
	return f, nil
}

func (f *connector) carry(b burst) (r load.SliceResult, err error) {
	f.flags, f.lost = 0, 0
	if b.counted {
		f.flags = crrCounted
	}
	err = inNamespace(f.namespace, func() error {
		r, err = transact(b, f.latencies, f.attempt)
		return err
	})
	return r, err
}

func (f *connector) attempt() (completed bool, err error) {
	err = f.exchange()
	if f.lost++; errors.Is(err, unix.ETIMEDOUT) && f.lost < maxLost {
		return false, nil
	}
	f.lost = 0
	return err == nil, err
}

// idle does one transaction that is not counted and whose addresses are kept.
func (f *connector) idle() error {
	f.flags = crrLast
	return inNamespace(f.namespace, func() error {
		for {
			if completed, err := f.attempt(); completed || err != nil {
				return err
			}
		}
	})
}

func (f *connector) exchange() (err error) {
	s := f.session
	opened, _, errno := unix.RawSyscall(unix.SYS_SOCKET, uintptr(f.target.Addr.Family),
		unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if errno != 0 {
		return fmt.Errorf("open socket: %w", errno)
	}
	fd := int(opened)
	defer func() { _, _, _ = unix.RawSyscall(unix.SYS_CLOSE, opened, 0, 0) }()
	if err := setTimeouts(fd, socketTick); err != nil {
		return err
	}
	if f.congestion != nil {
		if err := setOption(fd, [2]int{unix.IPPROTO_TCP, unix.TCP_CONGESTION}, unsafe.Pointer(&f.congestion[0]),
			len(f.congestion)); err != nil {
			return fmt.Errorf("set congestion control %q: %w", f.congestion, err)
		}
	}
	if err := s.connect(fd, f.target); errors.Is(err, unix.EADDRNOTAVAIL) {
		return fmt.Errorf("connect: no port is left: connections in TIME_WAIT hold them (set net.ipv4.tcp_tw_reuse to 1 "+
			"and widen net.ipv4.ip_local_port_range in the client's network namespace): %w", err)
	} else if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	if f.flags&crrLast != 0 {
		if f.total.ClientLocal, f.total.ClientPeer, err = addresses(fd); err != nil {
			return err
		}
	}
	kind := crrRequest | s.Slot<<crrShift | f.flags
	f.request[0] = kind
	if err := s.transmit(fd, f.request, 0); err != nil {
		return err
	}
	if err := s.recvAll(fd, f.response); err != nil {
		return err
	}
	if s.spec.Reset {
		abort := unix.Linger{Onoff: 1} // see socket(7)
		if err := setOption(fd, [2]int{unix.SOL_SOCKET, unix.SO_LINGER}, unsafe.Pointer(&abort),
			unix.SizeofLinger); err != nil {
			return fmt.Errorf("set linger: %w", err)
		}
	}
	if f.response[0] != kind {
		return fmt.Errorf("request %#x got the response %#x", kind, f.response[0])
	}
	return nil
}

func (f *connector) end() (load.Served, error) {
	if err := f.session.write([]byte{kindEnd}); err != nil {
		return load.Served{}, err
	}
	report, err := f.session.readReport()
	f.total.ServerLocal, f.total.ServerPeer = report.Local, report.Peer
	return report, err
}

// The short connections of a tcp_crr carry no header. The first byte of a request has the bit crrRequest, the slot
// of its persistent connection, and two flags. Headers begin with a brace.
const (
	crrRequest = 0x80
	crrCounted = 1 << 0
	crrLast    = 1 << 1 // of a slice; not counted
	crrSlots   = 32     // slots of a listener; the slot number crrSlots means no slot
	crrShift   = 2
)

// acceptor accepts the connections of one listener on a thread. It serves tcp_crr connections itself, without the Go
// scheduler, and hands out the others with the bytes read. At rest the thread waits outside the Go scheduler too.
type acceptor struct {
	session *session // the listener; also for calls on all sockets
	hand    func(fd int, begin []byte)
	buf     []byte
	slots   [crrSlots]atomic.Pointer[crrSlot]
}

type crrSlot struct {
	request, response int
	count             atomic.Uint64
	last              atomic.Pointer[load.Served] // the addresses of the last short connection of a slice
}

func (a *acceptor) loop() error {
	defer a.session.close()
	for resting := true; ; {
		if resting {
			if err := a.session.park(0); err != nil {
				return err
			}
		}
		fd, _, errno := unix.RawSyscall6(unix.SYS_ACCEPT4, uintptr(a.session.fd), 0, 0, unix.SOCK_CLOEXEC, 0, 0)
		if errno == 0 {
			resting = a.accepted(int(fd))
			continue
		}
		if a.session.stopped.Load() {
			return errCancelled
		}
		if errno == unix.EMFILE || errno == unix.ENFILE || errno == unix.ENOBUFS || errno == unix.ENOMEM {
			time.Sleep(socketTick) // until others close theirs
		}
		resting = true // also if no client came, or the client has gone
	}
}

// accepted serves a connection or hands it out. It reports whether the acceptor may rest.
func (a *acceptor) accepted(fd int) (rest bool) {
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd),
		uintptr(unsafe.Pointer(&a.buf[0])), uintptr(len(a.buf)), 0, 0, 0)
	switch {
	case errno != 0: // its timeout: a silent one, or a late one, must not hold up the others
		a.hand(fd, nil)
		return true
	case n > 0 && a.buf[0]&crrRequest == 0:
		a.hand(fd, slices.Clone(a.buf[:n]))
		return true
	}
	last := n > 0 && a.buf[0]&crrLast != 0
	if n > 0 {
		a.serve(int(n), fd, a.buf)
	}
	_, _, _ = unix.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0)
	return last
}

// serve answers the request of a short connection, whose first n bytes are in buf. If it fails, its client reports the
// error.
func (a *acceptor) serve(n, fd int, buf []byte) {
	kind := buf[0]
	slot := a.slots[kind>>crrShift%crrSlots].Load()
	if slot == nil {
		return
	}
	for n < slot.request {
		more, err := a.session.recv(fd, buf[:min(len(buf), slot.request-n)])
		if err != nil {
			return
		}
		n += more
	}
	switch {
	case kind&crrCounted != 0:
		slot.count.Add(1)
	case kind&crrLast != 0:
		if local, peer, err := addresses(fd); err == nil {
			slot.last.Store(&load.Served{Local: local, Peer: peer})
		}
	}
	buf[0] = kind
	for left := slot.response; left > 0; { // all but the first byte may be any
		part := buf[:min(len(buf), left)]
		if a.session.transmit(fd, part, 0) != nil {
			return
		}
		left -= len(part)
	}
	_, _ = a.session.recv(fd, buf) // the end of the stream
}

func (a *acceptor) claim(slot *crrSlot) byte {
	for i := range a.slots {
		if a.slots[i].CompareAndSwap(nil, slot) {
			return byte(i)
		}
	}
	return crrSlots
}

func serveSlot(s *session) error {
	slot := &crrSlot{request: s.spec.RequestSize(), response: s.spec.ResponseSize()}
	if s.Slot = s.acceptor.claim(slot); s.Slot == crrSlots {
		return errors.Join(errors.New("all slots are taken"), s.welcome())
	}
	defer s.acceptor.slots[s.Slot].Store(nil)
	if err := errors.Join(s.welcome(), s.park(0)); err != nil {
		return err
	}
	end := []byte{0}
	if err := s.readFull(end); err != nil {
		return err
	}
	if end[0] != kindEnd {
		return fmt.Errorf("the persistent connection carries %q", end)
	}
	if last := slot.last.Load(); last != nil {
		s.Local, s.Peer = last.Local, last.Peer
	}
	s.Count = slot.count.Load()
	return nil
}
