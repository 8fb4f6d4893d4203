// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"errors"
	"fmt"
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
