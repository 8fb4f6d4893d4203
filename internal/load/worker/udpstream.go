// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/load"
)

// Times of UDP connections.
const (
	// udpTick is the timeout of a client's blocking call: an answer that takes longer is
	// lost.
	udpTick = 20 * time.Millisecond
	// udpIdle is the time that a server keeps a connection that carries no load. UDP does
	// not tell that a client has vanished.
	udpIdle = 10 * time.Minute
	// alivePerStall is the number of messages to a client per stall time that say that the
	// server receives.
	alivePerStall = 10
)

// datagramCounts is the server's answer to a datagramIdle, after the datagram's
// beginning: 4 numbers of 8 bytes, big-endian. All but the window are of the connection's
// life so far, of the counted datagrams, so that an answer may be repeated.
type datagramCounts struct {
	received, count, outOfOrder uint64
	window                      time.Duration // from the first counted arrival in the burst to the last
}

const countsSize = load.MinDatagram + 4*8

// put writes the counts behind a datagram's beginning.
func (c datagramCounts) put(b []byte) {
	for i, n := range []uint64{c.received, c.count, c.outOfOrder, uint64(c.window)} {
		binary.BigEndian.PutUint64(b[load.MinDatagram+8*i:], n)
	}
}

// parseCounts reads what put writes.
func parseCounts(b []byte) (c datagramCounts, ok bool) {
	if len(b) != countsSize {
		return datagramCounts{}, false
	}
	number := func(i int) uint64 { return binary.BigEndian.Uint64(b[load.MinDatagram+8*i:]) }
	c = datagramCounts{number(0), number(1), number(2), time.Duration(number(3))}
	return c, c.window >= 0
}

// since returns what was counted after earlier counts. It is false if the counts step back.
func (c datagramCounts) since(before datagramCounts) (r load.SliceResult, ok bool) {
	if c.received < before.received || c.count < before.count || c.outOfOrder < before.outOfOrder {
		return load.SliceResult{}, false
	}
	return load.SliceResult{
		Count: c.count - before.count, Received: c.received - before.received,
		OutOfOrder: c.outOfOrder - before.outOfOrder, Seconds: c.window.Seconds(),
	}, true
}

// datagramFlow sends the datagrams of one flow. Each datagram says whether it is counted,
// so both ends count the same ones, and missing ones were lost.
type datagramFlow struct {
	session    *session
	out, in    []byte
	question   [load.MinDatagram]byte // for the counts
	next       datagram
	unanswered uint64 // datagrams since the last answer
	pace       pace
	heard      time.Time // when the server was last heard of
	checked    time.Time // when that was last checked
	serial     uint64    // of the last datagramIdle
	counts     datagramCounts
}

func openDatagrams(c *connection, s *session) (flow, error) {
	return newDatagramFlow(s, s.spec.DatagramSize(), newPace(s.spec, len(c.flows)))
}

func newDatagramFlow(s *session, size int, p pace) (*datagramFlow, error) {
	return &datagramFlow{
		session: s, out: make([]byte, size), in: make([]byte, load.MaxDatagram), next: datagram{flow: s.number}, pace: p,
	}, setTimeouts(s.fd, udpTick)
}

// pace is the schedule of a flow's datagrams. The zero value sends as fast as possible.
type pace struct {
	gap  float64 // nanoseconds between two datagrams
	turn float64 // the flow's offset, as a part of the gap
}

// newPace returns the schedule of a spec's flow. The flows take turns.
func newPace(spec load.Spec, flow int) pace {
	if spec.Rate == 0 {
		return pace{}
	}
	flows := float64(spec.FlowCount())
	return pace{gap: float64(spec.DatagramSize()) * 8e9 / float64(spec.Rate) * flows, turn: float64(flow) / flows}
}

// due returns the time after the start of a burst at which its datagram of this number,
// counted from 0, is due.
func (p pace) due(number uint64) time.Duration {
	return time.Duration((float64(number) + p.turn) * p.gap)
}

// kind returns the kind of a burst's datagrams.
func (b burst) kind() byte {
	if b.counted {
		return datagramMeasured
	}
	return datagramWarmup
}

func (f *datagramFlow) carry(b burst) (load.SliceResult, error) {
	f.heard, f.checked = b.start, b.start
	sent, elapsed, err := f.send(b)
	if err != nil {
		return load.SliceResult{}, err
	}
	r, err := f.settle()
	// Datagrams that a queue held at the beginning arrive faster than they were sent.
	r.Sent, r.Seconds = sent, max(r.Seconds, elapsed.Seconds())
	return r, err
}

// send sends the datagrams of a burst, at least one.
func (f *datagramFlow) send(b burst) (sent uint64, elapsed time.Duration, err error) {
	for {
		if f.pace.gap > 0 {
			sleepUntil(b.start.Add(min(f.pace.due(sent), b.length)))
		}
		elapsed = time.Since(b.start)
		if sent > 0 {
			if b.over(sent, elapsed) {
				return sent, elapsed, nil
			}
			if err := f.checkServer(b.start.Add(elapsed)); err != nil {
				return sent, elapsed, err
			}
		}
		if err := f.sendNext(b.kind()); err != nil {
			return sent, elapsed, err
		}
		sent++
	}
}

// checkServer checks now and then that the server still receives, in a stream without
// answers.
func (f *datagramFlow) checkServer(now time.Time) error {
	stall := f.session.spec.StallTime()
	if f.session.spec.Window > 0 || now.Sub(f.checked) < stall/alivePerStall {
		return nil
	}
	f.checked = now
	for {
		readable, err := f.session.readable()
		switch {
		case err != nil:
			return err
		case !readable && now.Sub(f.heard) > stall:
			return fmt.Errorf("nothing heard from the server for %v: %w", stall, unix.ETIMEDOUT)
		case !readable:
			return nil
		}
		f.heard = now
		if _, _, err := f.session.receiveOnce(f.in); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
}

// sendNext sends the next datagram, and waits for its answer if a window ends with it.
func (f *datagramFlow) sendNext(kind byte) error {
	window := f.session.spec.Window
	f.unanswered++
	f.next.kind, f.next.answer = kind, window > 0 && f.unanswered >= window
	f.next.put(f.out)
	if err := f.session.send(f.out); err != nil {
		return err
	}
	number, answered := f.next.number, f.next.answer
	f.next.number++
	if !answered {
		return nil
	}
	f.unanswered = 0
	for {
		d, _, err := f.session.receive(f.in)
		if err != nil {
			return fmt.Errorf("no answer to datagram %d: %w", number, err)
		}
		if d.kind == datagramAnswer && d.number == number {
			return nil
		}
	}
}

// settle asks the server for its counts until it answers. Nothing is in flight then.
func (f *datagramFlow) settle() (load.SliceResult, error) {
	f.serial++
	f.unanswered = 0
	datagram{kind: datagramIdle, flow: f.session.number, number: f.serial}.put(f.question[:])
	_, n, err := f.session.ask(f.question[:], f.in, datagramSums)
	if err != nil {
		return load.SliceResult{}, err
	}
	counts, ok := parseCounts(f.in[:n])
	r, grown := counts.since(f.counts)
	if !ok || !grown {
		return load.SliceResult{}, fmt.Errorf("server's counts %+v after %+v", counts, f.counts)
	}
	f.counts = counts
	return r, nil
}

// idle does nothing: the server idles after each burst.
func (f *datagramFlow) idle() error { return nil }

func (f *datagramFlow) end() (load.Served, error) { return f.session.endUDP() }

// serveDatagrams counts the datagrams of one flow, and answers them if they ask for it.
func serveDatagrams(s *session) (load.Served, error) {
	r := &datagramReceiver{session: s, report: s.served(), start: time.Now(), answer: make([]byte, load.MinDatagram), idle: true}
	if s.spec.Workload == load.UDPRR {
		r.answer = make([]byte, s.spec.ResponseSize())
	}
	buf := make([]byte, load.MaxDatagram)
	for {
		if r.idle {
			if err := s.park(udpIdle); err != nil {
				return r.report, err
			}
		}
		d, n, err := s.receive(buf)
		switch {
		case err != nil:
			return r.report, err
		case d.kind == datagramEnd:
			r.report.Count = r.running.count
			return r.report, nil
		}
		if err := r.handle(d, n); err != nil {
			return r.report, err
		}
	}
}

// datagramReceiver is the server's state of one flow of datagrams.
type datagramReceiver struct {
	session *session
	report  load.Served
	start   time.Time
	arrived time.Duration // when the last datagram of the load came, since start
	alive   time.Duration // when the client was last told that the server receives
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

// handle counts a datagram of n bytes or executes it.
func (r *datagramReceiver) handle(d datagram, n int) error {
	switch d.kind {
	case datagramHello:
		if d.flow != r.session.number {
			return errors.New("another client has its port")
		}
		return r.session.welcome()
	case datagramIdle:
		return r.endBurst(d)
	case datagramMeasured, datagramWarmup:
		if err := r.count(d, n); err != nil {
			return err
		}
	}
	if !d.answer {
		return nil
	}
	datagram{kind: datagramAnswer, flow: d.flow, number: d.number}.put(r.answer)
	return r.session.send(r.answer)
}

// count counts a datagram of the load. In a stream without answers it tells the client now
// and then that the server receives.
func (r *datagramReceiver) count(d datagram, n int) error {
	spec := &r.session.spec
	r.idle = false
	if r.arrived = time.Since(r.start); d.kind == datagramMeasured {
		if !r.counting {
			r.counting, r.opened = true, r.arrived
		}
		if spec.Workload == load.UDPRR {
			n = 1
		}
		r.running.received++
		r.running.count += uint64(n)
	}
	if d.number < r.next {
		r.running.outOfOrder++
	} else {
		r.next = d.number + 1
	}
	if spec.Window > 0 || spec.Workload == load.UDPRR || r.arrived-r.alive < spec.StallTime()/alivePerStall {
		return nil
	}
	r.alive = r.arrived
	datagram{kind: datagramAlive, flow: d.flow}.put(r.answer)
	return r.session.send(r.answer)
}

// endBurst ends a burst, the first time, and sends the counts.
func (r *datagramReceiver) endBurst(d datagram) error {
	r.idle = true
	if d.number != r.burst {
		r.burst, r.sums = d.number, r.running
		r.sums.window = 0
		if r.counting {
			r.sums.window = r.arrived - r.opened
		}
		r.counting = false
	}
	datagram{kind: datagramSums, flow: d.flow, number: d.number}.put(r.sent[:])
	r.sums.put(r.sent[:])
	return r.session.send(r.sent[:])
}
