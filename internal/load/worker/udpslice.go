// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	hdrhistogram "github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"

	"mustang/internal/load"
	"mustang/internal/load/clock"
	"mustang/internal/load/socket"
)

// udpTick is the timeout of a client's blocking call on a standing UDP connection: an
// answer that takes longer is lost.
const udpTick = 20 * time.Millisecond

// udpRest is the time that a server keeps a UDP connection that carries no load. UDP does
// not tell that a client has vanished.
const udpRest = 10 * time.Minute

// datagramCounts is the server's answer to a datagramRest, after the datagram's
// beginning: 5 numbers of 8 bytes, big-endian. All but the window are of the connection's
// life so far, of the counted datagrams, so that an answer may be repeated.
type datagramCounts struct {
	received, bytes, overflowed, outOfOrder uint64
	window                                  time.Duration // from the first counted arrival in the burst to the last
}

const countsSize = load.MinDatagram + 5*8

// put writes the counts behind a datagram's beginning.
func (c datagramCounts) put(b []byte) {
	for i, n := range []uint64{c.received, c.bytes, c.overflowed, c.outOfOrder, uint64(c.window)} {
		binary.BigEndian.PutUint64(b[load.MinDatagram+8*i:], n)
	}
}

// parseCounts reads what put writes.
func parseCounts(b []byte) (c datagramCounts, ok bool) {
	if len(b) != countsSize {
		return datagramCounts{}, false
	}
	number := func(i int) uint64 { return binary.BigEndian.Uint64(b[load.MinDatagram+8*i:]) }
	c = datagramCounts{number(0), number(1), number(2), number(3), time.Duration(number(4))}
	return c, c.window >= 0
}

// since returns the tally of what was counted after earlier counts. It is false if the
// counts step back.
func (c datagramCounts) since(before datagramCounts) (t tally, ok bool) {
	if c.received < before.received || c.bytes < before.bytes || c.overflowed < before.overflowed || c.outOfOrder < before.outOfOrder {
		return tally{}, false
	}
	return tally{
		count: c.bytes - before.bytes, received: c.received - before.received,
		overflowed: c.overflowed - before.overflowed, outOfOrder: c.outOfOrder - before.outOfOrder, elapsed: c.window,
	}, true
}

// datagramFlow is the client's part of a flow of a UDP stream in slices.
type datagramFlow struct {
	*udpSender
	serial uint64 // of the last datagramRest
	counts datagramCounts
}

func newDatagramFlow(s *session) (*datagramFlow, error) {
	return &datagramFlow{udpSender: newUDPSender(s)}, socket.SetTimeouts(s.fd, udpTick)
}

func (udpStream) stand(_ *standingConn, s *session) (flow, error) { return newDatagramFlow(s) }

// kind returns the kind of a burst's datagrams.
func (b burst) kind() byte {
	if b.counted {
		return datagramMeasured
	}
	return datagramWarmup
}

func (f *datagramFlow) carry(b burst) (tally, error) {
	f.lastSeen = b.start
	f.lastCheck = b.start
	if err := f.send(b.kind(), b.start, phase{length: b.length}); err != nil {
		return tally{}, err
	}
	t, err := f.settle()
	// Datagrams that a queue held at the beginning arrive faster than they were sent.
	t.sent, t.elapsed = f.counted, max(t.elapsed, f.elapsed)
	return t, err
}

// settle asks the server for its counts until it answers. Nothing is in flight then.
func (f *datagramFlow) settle() (tally, error) {
	f.serial++
	s := f.session
	for start := time.Now(); time.Since(start) <= s.spec.StallTime(); {
		datagram{kind: datagramRest, flow: s.flow, number: f.serial}.put(f.question[:])
		if err := s.send(f.question[:]); err != nil {
			return tally{}, err
		}
		for {
			d, n, err := s.receiveOnce(f.in)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil {
				return tally{}, err
			}
			if d.kind != datagramSums || d.number != f.serial {
				continue
			}
			counts, ok := parseCounts(f.in[:n])
			t, grown := counts.since(f.counts)
			if !ok || !grown {
				return tally{}, fmt.Errorf("server's counts %+v after %+v", counts, f.counts)
			}
			f.counts = counts
			return t, nil
		}
	}
	return tally{}, fmt.Errorf("no counts for %v: %w", s.spec.StallTime(), unix.ETIMEDOUT)
}

// rest does nothing: the server rests after each burst.
func (f *datagramFlow) rest() error { return nil }

func (f *datagramFlow) end() (load.Served, error) { return f.session.endUDP() }

// udpRR sends a datagram and waits for the server's answer, again and again. It goes on
// after udpTick without one.
type udpRR struct{}

func (udpRR) name() string    { return load.UDPRR }
func (udpRR) code() byte      { return 'q' }
func (udpRR) network() string { return "udp" }

func (udpRR) drive(*clientRun) (load.Measurement, error) {
	return load.Measurement{}, errors.ErrUnsupported
}
func (udpRR) serve(s *session) error { return udpStream{}.serve(s) }

func (udpRR) stand(c *standingConn, s *session) (flow, error) {
	f, err := newDatagramFlow(s)
	c.histogram = hdrhistogram.New(histogramMin, histogramMax, histogramDigits)
	return &datagramRequester{f, c.histogram}, err
}

// datagramRequester is the client's part of a udpRR connection.
type datagramRequester struct {
	*datagramFlow
	histogram *hdrhistogram.Histogram
}

func (f *datagramRequester) carry(b burst) (t tally, err error) {
	heard := b.start
	for t.elapsed < b.length || t.sent == 0 {
		answered, err := f.exchange(b.kind())
		if err != nil {
			return t, err
		}
		now := time.Since(b.start)
		t.sent++
		if answered {
			t.count++
			heard = b.start.Add(now)
		} else if lost := b.start.Add(now).Sub(heard); lost > f.session.spec.StallTime() {
			return t, fmt.Errorf("no answer for %v: %w", lost, unix.ETIMEDOUT)
		}
		if answered && b.counted {
			if err := f.histogram.RecordValue(int64(now - t.elapsed)); err != nil {
				return t, err
			}
		}
		t.elapsed = now
	}
	t.received = t.count
	return t, nil
}

// exchange sends a request and reports whether its answer came in time.
func (f *datagramRequester) exchange(kind byte) (answered bool, err error) {
	f.next.kind, f.next.answer = kind, true
	f.next.put(f.out)
	number := f.next.number
	f.next.number++
	if err := f.session.send(f.out); err != nil {
		return false, err
	}
	var since time.Time
	for {
		d, _, err := f.session.receiveOnce(f.in)
		switch {
		case err == nil && d.kind == datagramAnswer && d.number == number:
			return true, nil
		case err != nil && !errors.Is(err, os.ErrDeadlineExceeded):
			return false, err
		case err != nil:
			return false, nil
		case since.IsZero(): // a late answer to an earlier request
			since = time.Now()
		case time.Since(since) > udpTick:
			return false, nil
		}
	}
}

func (f *datagramRequester) rest() error {
	_, err := f.settle()
	return err
}

// beginBurst notes the first counted datagram of a burst.
func (r *udpReceiver) beginBurst() {
	if r.counting {
		return
	}
	r.counting, r.opened, r.cpu = true, time.Since(r.all.start), clock.ProcessCPU()
}

// endBurst ends a burst, the first time, and sends the counts.
func (r *udpReceiver) endBurst(d datagram) error {
	r.resting = true
	if r.counting {
		r.counting = false
		r.sums.window = r.arrived - r.opened
		r.report.CPUSeconds += (clock.ProcessCPU() - r.cpu).Seconds()
		r.report.Overflowed = r.session.overflowed()
		r.sums.received, r.sums.bytes = r.report.Received, r.report.Count
		r.sums.overflowed, r.sums.outOfOrder = r.report.Overflowed, r.report.OutOfOrder
		r.burst = d.number
	} else if d.number != r.burst {
		r.sums.window = 0 // a burst without counted datagrams
		r.burst = d.number
	}
	datagram{kind: datagramSums, flow: d.flow, number: d.number}.put(r.question[:])
	r.sums.put(r.question[:])
	return r.session.send(r.question[:])
}
