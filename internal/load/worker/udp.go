// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"mustang/internal/load"
)

// Every datagram of a UDP workload begins with load.MinDatagram bytes, with numbers in big-endian:
//
//	magic "MSU2" | kind | 1 if an answer is wanted | 2 bytes zero | flow, 8 bytes | number, 8 bytes
//
// The flow is drawn at random for each connection, so that late datagrams of another one are recognized.
const datagramMagic = "MSU2"

// Further kinds of datagrams. One of kindIdle is answered by sums with its number.
const (
	datagramHello   = 'h' // a header follows; answered by a welcome
	datagramWelcome = 'c' // a report in JSON follows
	datagramAnswer  = 'a' // with the number of the datagram that it answers
	datagramSums    = 's' // [datagramCounts] follow
)

const (
	// udpTick is the timeout of a client's blocking call: an answer that takes longer is lost.
	udpTick = 20 * time.Millisecond
	// udpIdle is how long a server keeps a connection without load. UDP does not show that a client has vanished.
	udpIdle        = 10 * time.Minute
	datagramBuffer = 8 << 20 // bytes of a UDP socket's buffer: holds datagrams while the other end has the CPU
	endCopies      = 3       // how often the client sends the end of a connection
)

type datagram struct {
	kind         byte
	answer       bool
	flow, number uint64
}

func (d datagram) put(b []byte) {
	copy(b, datagramMagic)
	b[4], b[5], b[6], b[7] = d.kind, 0, 0, 0
	if d.answer {
		b[5] = 1
	}
	binary.BigEndian.PutUint64(b[8:], d.flow)
	binary.BigEndian.PutUint64(b[16:], d.number)
}

// parseDatagram parses b. It returns false if b is not a datagram of a workload.
func parseDatagram(b []byte) (d datagram, ok bool) {
	if len(b) < load.MinDatagram || string(b[:len(datagramMagic)]) != datagramMagic {
		return datagram{}, false
	}
	return datagram{
		kind: b[4], answer: b[5] == 1,
		flow: binary.BigEndian.Uint64(b[8:]), number: binary.BigEndian.Uint64(b[16:]),
	}, true
}

func (d datagram) with(message any) ([]byte, error) {
	body, err := json.Marshal(message)
	if err != nil {
		return nil, fmt.Errorf("encode message: %w", err)
	}
	b := make([]byte, load.MinDatagram, load.MinDatagram+len(body))
	d.put(b)
	return append(b, body...), nil
}

func (s *session) hello() (report load.Served, err error) {
	hello, err := datagram{kind: datagramHello, flow: s.number}.with(newHeader(s.spec))
	if err != nil {
		return load.Served{}, err
	}
	buf := make([]byte, load.MaxDatagram)
	n, err := s.ask(hello, buf, datagramWelcome)
	if err != nil {
		return load.Served{}, fmt.Errorf("connect: %w", err)
	}
	err = json.Unmarshal(buf[load.MinDatagram:n], &report)
	return report, err
}

// ask sends a datagram repeatedly until the server answers with one of a kind and the same number, of n bytes in buf.
func (s *session) ask(question, buf []byte, kind byte) (n int, err error) {
	asked, _ := parseDatagram(question)
	for start := time.Now(); time.Since(start) <= s.spec.StallTime(); {
		if err := s.send(question); err != nil {
			return 0, err
		}
		for err = nil; err == nil; {
			var d datagram
			if d, n, err = s.receive(buf, 0); err == nil && d.number == asked.number && d.kind == kind {
				return n, nil
			}
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return 0, err
		}
	}
	return 0, fmt.Errorf("no answer for %v: %w", s.spec.StallTime().Round(time.Millisecond), unix.ETIMEDOUT)
}

// send sends a datagram. It counts as sent, and lost, if a queue is full.
func (s *session) send(b []byte) error {
	if s.stopped.Load() {
		return errCancelled
	}
	if err := s.write(b); !errors.Is(err, unix.ENOBUFS) {
		return err
	}
	return nil
}

// receive waits for a datagram of this session's flow, for a limit after the socket's timeout. The error is
// os.ErrDeadlineExceeded if none came.
func (s *session) receive(b []byte, limit time.Duration) (datagram, int, error) {
	for since := (time.Time{}); ; {
		n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(s.fd),
			uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), 0, 0, 0)
		if s.stopped.Load() {
			return datagram{}, 0, errCancelled
		}
		if errno != 0 && errno != unix.EAGAIN && errno != unix.EINTR {
			return datagram{}, 0, errno
		}
		if errno == 0 {
			if d, ok := parseDatagram(b[:n]); ok && (d.flow == s.number || d.kind == datagramHello) {
				return d, int(n), nil
			}
		}
		switch {
		case limit == 0 || !since.IsZero() && time.Since(since) > limit:
			return datagram{}, 0, os.ErrDeadlineExceeded
		case since.IsZero():
			since = time.Now()
		}
	}
}

// datagramCounts is the server's answer to a kindIdle, after the datagram's beginning: 4 numbers of 8 bytes,
// big-endian. All except the window count the connection's life so far, in datagrams: an answer may be repeated.
type datagramCounts struct {
	Received, Count, OutOfOrder uint64
	Window                      time.Duration // from the first counted arrival in the burst to the last
}

const countsSize = load.MinDatagram + 4*8

func (c datagramCounts) put(b []byte) {
	_, _ = binary.Encode(b[load.MinDatagram:], binary.BigEndian, c)
}

func parseCounts(b []byte) (c datagramCounts, ok bool) {
	if len(b) != countsSize {
		return c, false
	}
	_, err := binary.Decode(b[load.MinDatagram:], binary.BigEndian, &c)
	return c, err == nil && c.Window >= 0
}

// since returns what was counted after earlier counts. It is false if the counts step back.
func (c datagramCounts) since(before datagramCounts) (r load.SliceResult, ok bool) {
	return load.SliceResult{
		Count: c.Count - before.Count, Received: c.Received - before.Received,
		OutOfOrder: c.OutOfOrder - before.OutOfOrder, Seconds: c.Window.Seconds(),
	}, c.Received >= before.Received && c.Count >= before.Count && c.OutOfOrder >= before.OutOfOrder
}

func serveDatagrams(s *session) error {
	r := &datagramReceiver{session: s, start: time.Now(), answer: make([]byte, load.MinDatagram), idle: true}
	if s.spec.Workload == load.UDPRR {
		r.answer = make([]byte, s.spec.ResponseSize())
	}
	buf := make([]byte, load.MaxDatagram)
	if err := s.welcome(); err != nil {
		return err
	}
	for {
		if r.idle {
			if err := s.park(udpIdle); err != nil {
				return err
			}
		}
		d, n, err := s.receive(buf, s.spec.StallTime())
		if err != nil || d.kind == kindEnd {
			return err
		}
		if err := r.handle(d, n); err != nil {
			return err
		}
	}
}

type datagramReceiver struct {
	session *session
	start   time.Time
	arrived time.Duration // when the last datagram of the load came, since start
	next    uint64        // the expected number
	idle    bool          // no load is expected
	answer  []byte

	running  datagramCounts // of all counted datagrams
	sums     datagramCounts // at the end of the last burst
	counting bool           // a burst with counted datagrams has begun
	burst    uint64         // the number of the last one that ended
	opened   time.Duration  // first counted arrival of the burst, since start
	sent     [countsSize]byte
}

func (r *datagramReceiver) handle(d datagram, n int) error {
	switch d.kind {
	case datagramHello:
		if d.flow != r.session.number {
			return errors.New("another client has its port")
		}
		return r.session.welcome()
	case kindIdle:
		return r.endBurst(d)
	case kindMeasured, kindWarmup:
		r.count(d, n)
	}
	if !d.answer {
		return nil
	}
	datagram{kind: datagramAnswer, flow: d.flow, number: d.number}.put(r.answer)
	return r.session.send(r.answer)
}

func (r *datagramReceiver) count(d datagram, n int) {
	r.idle = false
	if r.arrived = time.Since(r.start); d.kind == kindMeasured {
		if !r.counting {
			r.counting, r.opened = true, r.arrived
		}
		if r.session.spec.Workload == load.UDPRR {
			n = 1
		}
		r.running.Received++
		r.running.Count += uint64(n)
	}
	if d.number < r.next {
		r.running.OutOfOrder++
	} else {
		r.next = d.number + 1
	}
}

func (r *datagramReceiver) endBurst(d datagram) error {
	r.idle = true
	if d.number != r.burst {
		r.burst, r.sums = d.number, r.running
		r.sums.Window = 0
		if r.counting {
			r.sums.Window = r.arrived - r.opened
		}
		r.counting = false
	}
	datagram{kind: datagramSums, flow: d.flow, number: d.number}.put(r.sent[:])
	r.sums.put(r.sent[:])
	return r.session.send(r.sent[:])
}
