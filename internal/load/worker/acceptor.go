// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"mustang/internal/load"
)

// The short connections of a tcp_crr carry no header. The first byte of a request has the bit crrRequest, the slot
// of its persistent connection, and two flags. Headers begin with a letter.
const (
	crrRequest = 0x80
	crrCounted = 1 << 0
	crrLast    = 1 << 1 // of a slice; not counted
	crrSlots   = 32     // of one listener
	crrShift   = 2
	crrFull    = 0xff // instead of a slot: there is none
)

// acceptor accepts the connections of one listener on a thread. It serves tcp_crr connections itself, without the Go
// scheduler, and hands out the others with the bytes that have been read. At rest the thread waits outside the Go
// scheduler too.
type acceptor struct {
	session *session // the listener; also for calls on all sockets
	hand    func(fd int, begin []byte)
	buf     []byte

	mu    sync.Mutex
	slots [crrSlots]atomic.Pointer[crrSlot]
	used  atomic.Int32
}

// crrSlot is the server's state of one persistent connection of a tcp_crr.
type crrSlot struct {
	index             byte
	request, response int
	count             atomic.Uint64
	local, peer       netip.AddrPort // of the last short connection of a slice; guarded by the acceptor's lock
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
		switch {
		case errno == 0:
			resting = a.accepted(int(fd))
		case a.session.stopped.Load():
			return errCancelled
		case errno == unix.EMFILE || errno == unix.ENFILE || errno == unix.ENOBUFS || errno == unix.ENOMEM:
			time.Sleep(socketTick) // until others close theirs
			resting = true
		default: // nobody came, or the one who came has left
			resting = true
		}
	}
}

// accepted serves a connection or hands it out. It reports whether the acceptor may rest.
func (a *acceptor) accepted(fd int) (rest bool) {
	if a.used.Load() == 0 {
		a.hand(fd, nil)
		return true
	}
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd),
		uintptr(unsafe.Pointer(&a.buf[0])), uintptr(len(a.buf)), 0, 0, 0)
	switch {
	case errno != 0: // its timeout: a silent one, or a late one, must not hold up the others
		a.hand(fd, nil)
		return false
	case n > 0 && a.buf[0]&crrRequest == 0:
		a.hand(fd, append([]byte(nil), a.buf[:n]...))
		return false
	}
	last := n > 0 && a.buf[0]&crrLast != 0
	if n > 0 {
		a.serve(int(n), fd, a.buf)
	}
	_, _, _ = unix.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0)
	return last
}

// serve answers the request of a short connection, of which n bytes are in buf. If it fails, its client reports the
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
		a.keepAddresses(fd, slot)
	}
	buf[0] = kind
	for sent := 0; sent < slot.response; {
		// All but the first byte may be any.
		more, err := a.session.transmit(fd, buf[:min(len(buf), slot.response-sent)], 0)
		if err != nil {
			return
		}
		sent += more
	}
	_, _ = a.session.recv(fd, buf) // the end of the stream
}

// keepAddresses keeps the addresses of the last connection of a slice.
func (a *acceptor) keepAddresses(fd int, slot *crrSlot) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if local, peer, err := addresses(fd); err == nil {
		slot.local, slot.peer = local, peer
	}
}

// claim gives a persistent connection a slot, or returns nil if all are taken.
func (a *acceptor) claim(spec load.Spec) *crrSlot {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range a.slots {
		if a.slots[i].Load() == nil {
			slot := &crrSlot{index: byte(i), request: spec.RequestSize(), response: spec.ResponseSize()}
			a.slots[i].Store(slot)
			a.used.Add(1)
			return slot
		}
	}
	return nil
}

func (a *acceptor) release(slot *crrSlot) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.slots[slot.index].Store(nil)
	a.used.Add(-1)
}

// serveSlot keeps the slot of a tcp_crr until the client ends it.
func serveSlot(s *session) (load.Served, error) {
	a, report := s.acceptor, s.served()
	slot := a.claim(s.spec)
	if slot == nil {
		err := fmt.Errorf("more than %d open connections of %s", crrSlots, load.TCPCRR)
		return report, errors.Join(err, s.write([]byte{crrFull}))
	}
	defer a.release(slot)
	if err := s.write([]byte{slot.index}); err != nil {
		return report, err
	}
	if err := s.park(0); err != nil {
		return report, err
	}
	end := []byte{0}
	if err := s.readFull(end); err != nil {
		return report, err
	}
	if end[0] != kindEnd {
		return report, fmt.Errorf("the persistent connection carries %q", end)
	}
	report.Count = slot.count.Load()
	a.mu.Lock()
	if slot.peer.IsValid() {
		report.Local, report.Peer = slot.local, slot.peer
	}
	a.mu.Unlock()
	return report, nil
}
