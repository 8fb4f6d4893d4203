// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"errors"
	"fmt"
	"net/netip"
	"time"
	"unsafe"

	hdrhistogram "github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"

	"mustang/internal/load"
	"mustang/internal/load/socket"
	"mustang/internal/netns"
)

// maxLost is the number of connections in a row that may be lost.
const maxLost = 3

// tcpCRR connects, sends a request, waits for the response and closes, again and again.
// The client closes first, so its ports stay in TIME_WAIT, unless the spec has it send a reset. The standing connection itself
// carries no load. A connection on which nothing moves for the spec's stall time is lost: it is
// counted as sent, but not as received, and its time counts.
type tcpCRR struct{}

func (tcpCRR) name() string    { return load.TCPCRR }
func (tcpCRR) code() byte      { return 'c' }
func (tcpCRR) network() string { return "tcp" }

func (tcpCRR) drive(*clientRun) (load.Measurement, error) {
	return load.Measurement{}, errors.ErrUnsupported
}

func (tcpCRR) stand(c *standingConn, s *session) (flow, error) {
	f := &connector{
		session: s, total: &c.total, target: socket.RawSockaddr(s.spec.Target), targetSize: unix.SizeofSockaddrInet6,
		request: make([]byte, s.spec.RequestSize()), response: make([]byte, s.spec.ResponseSize()),
		latency: hdrhistogram.New(histogramMin, histogramMax, histogramDigits),
		connect: hdrhistogram.New(histogramMin, histogramMax, histogramDigits),
	}
	if f.target.Addr.Family == unix.AF_INET {
		f.targetSize = unix.SizeofSockaddrInet4
	}
	if err := s.readFull(f.response[:1]); err != nil {
		return nil, fmt.Errorf("read the slot: %w", err)
	}
	if f.slot = f.response[0]; f.slot >= crrSlots {
		return nil, fmt.Errorf("the server's port has more than %d standing connections of %s", crrSlots, load.TCPCRR)
	}
	if s.spec.Namespace != "" {
		var err error
		if f.namespace, err = netns.Open(s.spec.Namespace); err != nil {
			return nil, err
		}
		c.closers = append(c.closers, f.namespace)
	}
	c.histogram, c.connects = f.latency, f.connect
	return f, f.inside(f.checkCongestion)
}

// connector is the client's part of a tcpCRR.
type connector struct {
	session           *session // the standing connection
	total             *load.Measurement
	namespace         *netns.Namespace // nil: the agent's own
	target            *unix.RawSockaddrAny
	targetSize        uintptr
	slot              byte
	congestion        []byte // to set; nil if it is the default
	request, response []byte
	latency, connect  *hdrhistogram.Histogram
}

// checkCongestion sets congestion unless new sockets have the standing connection's.
func (f *connector) checkCongestion() error {
	fd, err := unix.Socket(int(f.target.Addr.Family), unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open socket: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	usual, err := unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	if err != nil {
		return fmt.Errorf("read congestion control: %w", err)
	}
	if usual != f.session.congestion {
		f.congestion = []byte(f.session.congestion)
	}
	return nil
}

// inside calls fn in the namespace of the sockets.
func (f *connector) inside(fn func() error) error {
	if f.namespace == nil {
		return fn()
	}
	return f.namespace.Do(fn)
}

func (f *connector) carry(b burst) (t tally, err error) {
	var flags byte
	if b.counted {
		flags = crrCounted
	}
	err = f.inside(func() error {
		start, since := time.Now(), uint64(0)
		for t.elapsed < b.length || t.count == 0 {
			connected, err := f.transact(flags, start)
			t.sent++
			now := time.Since(start)
			if errors.Is(err, unix.ETIMEDOUT) && t.sent-since < maxLost {
				t.elapsed = now // a loss takes its time
				continue
			}
			if err != nil {
				return err
			}
			if b.counted {
				if err := errors.Join(f.latency.RecordValue(int64(now-t.elapsed)),
					f.connect.RecordValue(int64(connected-t.elapsed))); err != nil {
					return err
				}
			}
			t.elapsed = now
			t.count++
			t.received++
			since = t.sent
		}
		return nil
	})
	return t, err
}

// rest does one transaction that is not counted and whose addresses are kept.
func (f *connector) rest() error {
	return f.inside(func() (err error) {
		for range maxLost {
			if _, err = f.transact(crrLast, time.Now()); !errors.Is(err, unix.ETIMEDOUT) {
				break
			}
		}
		return err
	})
}

// transact does one transaction. It returns the time since start when it was connected.
func (f *connector) transact(flags byte, start time.Time) (connected time.Duration, err error) {
	fd, _, errno := unix.RawSyscall(unix.SYS_SOCKET, uintptr(f.target.Addr.Family), unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if errno != 0 {
		return 0, fmt.Errorf("open socket: %w", errno)
	}
	defer func() { _, _, _ = unix.RawSyscall(unix.SYS_CLOSE, fd, 0, 0) }()
	if err := socket.SetTimeouts(int(fd), socketTick); err != nil {
		return 0, err
	}
	if f.congestion != nil {
		if _, _, errno := unix.RawSyscall6(unix.SYS_SETSOCKOPT, fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION,
			uintptr(unsafe.Pointer(&f.congestion[0])), uintptr(len(f.congestion)), 0); errno != 0 {
			return 0, fmt.Errorf("set congestion control %q: %w", f.congestion, errno)
		}
	}
	if err := f.dial(int(fd)); err != nil {
		return 0, fmt.Errorf("connect: %w", err)
	}
	connected = time.Since(start)
	if flags&crrLast != 0 {
		if err := f.keepAddresses(int(fd)); err != nil {
			return 0, err
		}
	}
	kind := crrRequest | f.slot<<crrShift | flags
	f.request[0] = kind
	for sent := 0; sent < len(f.request); {
		n, err := f.session.transmit(int(fd), f.request[sent:])
		if err != nil {
			return 0, err
		}
		sent += n
	}
	for read := 0; read < len(f.response); {
		n, err := f.session.recv(int(fd), f.response[read:])
		if err != nil {
			return 0, err
		}
		read += n
	}
	if f.session.spec.Reset {
		if _, _, errno := unix.RawSyscall6(unix.SYS_SETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_LINGER,
			uintptr(unsafe.Pointer(&abort)), unsafe.Sizeof(abort), 0); errno != 0 {
			return 0, fmt.Errorf("set linger: %w", errno)
		}
	}
	if f.response[0] != kind {
		return 0, fmt.Errorf("request %#x got the response %#x", kind, f.response[0])
	}
	return connected, nil
}

// abort makes the end of a connection a reset, see socket(7).
var abort = unix.Linger{Onoff: 1}

// dial connects a socket to the target.
func (f *connector) dial(fd int) error {
	var since time.Time
	for {
		_, _, errno := unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(f.target)), f.targetSize)
		switch errno {
		case 0, unix.EISCONN:
			return nil
		case unix.EADDRNOTAVAIL:
			return fmt.Errorf("no port is left: connections in TIME_WAIT hold them (set net.ipv4.tcp_tw_reuse to 1 and widen "+
				"net.ipv4.ip_local_port_range in the client's network namespace): %w", errno)
		case unix.EINPROGRESS, unix.EALREADY: // the timeout of a blocking socket
			errno = unix.EAGAIN
		}
		if err := f.session.wait(errno, &since); err != nil {
			return err
		}
	}
}

// keepAddresses makes a connection's addresses the sample of all.
func (f *connector) keepAddresses(fd int) error {
	local, err := unix.Getsockname(fd)
	if err != nil {
		return fmt.Errorf("read the local address: %w", err)
	}
	peer, err := unix.Getpeername(fd)
	if err != nil {
		return fmt.Errorf("read the peer address: %w", err)
	}
	m := f.total
	first := m.ClientLocal
	m.ClientLocal, m.ClientPeer = socket.AddrPort(local), socket.AddrPort(peer)
	if first == f.session.local { // that of the standing connection
		first = m.ClientLocal
	} else {
		first = m.ClientLocals[0]
	}
	m.ClientLocals = []netip.AddrPort{first, m.ClientLocal}
	return nil
}

func (f *connector) end() (load.Served, error) {
	if _, err := f.session.Write([]byte{crrEnd}); err != nil {
		return load.Served{}, err
	}
	report, err := f.session.readReport()
	f.total.ServerLocal, f.total.ServerPeer = report.Local, report.Peer
	return report, err
}
