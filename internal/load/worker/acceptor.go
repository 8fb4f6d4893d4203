// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"mustang/internal/load"
)

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
