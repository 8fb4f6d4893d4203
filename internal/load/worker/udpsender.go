// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/load"
	"mustang/internal/load/clock"
)

// udpStream is a one-way stream of datagrams from client to server. Each datagram says
// whether it is counted, so both ends count the same ones, and missing ones were lost.
// The received rate is by the clock of the end with the longer window: the client's lasts
// from the first counted datagram to the last, the server's from the arrival before the
// first of them to that of the last.
type udpStream struct{}

func (udpStream) name() string    { return load.UDPStream }
func (udpStream) code() byte      { return 'u' }
func (udpStream) network() string { return "udp" }

func (u udpStream) drive(r *clientRun) (load.Measurement, error) {
	window, err := clock.OpenWindow(r.spec.Exact)
	if err != nil {
		return load.Measurement{}, err
	}
	defer window.Close()
	senders, reports := make([]*udpSender, len(r.sessions)), make([]load.Served, len(r.sessions))
	if err := r.each(func(i int, s *session) (err error) {
		senders[i] = newUDPSender(s)
		reports[i], err = u.driveFlow(r, senders[i], window)
		return err
	}); err != nil {
		return load.Measurement{}, err
	}
	m, err := r.measurement(reports)
	if err != nil {
		return load.Measurement{}, err
	}
	var elapsed time.Duration
	for _, sender := range senders {
		m.Sent += sender.counted
		elapsed = max(elapsed, sender.elapsed)
	}
	m.ClientCPUSeconds, m.BusyNanos = window.ProcessCPU.Seconds(), window.BusyNanos
	// Datagrams that a queue held at the window's beginning arrive faster than they
	// were sent.
	m.Seconds = max(m.Seconds, elapsed.Seconds())
	if r.spec.Window > 0 {
		m.Seconds, m.Machine = elapsed.Seconds(), window.Machine
	}
	m.SetRate()
	m.Offered = float64(m.Sent) * float64(r.spec.DatagramSize()) * 8 / 1e9 / elapsed.Seconds()
	return m, nil
}

// driveFlow is the client's part of one flow.
func (u udpStream) driveFlow(r *clientRun, sender *udpSender, window *clock.Window) (load.Served, error) {
	s := sender.session
	if err := s.sendHeader(u); err != nil {
		return load.Served{}, err
	}
	if sender.settle > 0 {
		if err := sender.send(datagramWarmup, time.Now(), phase{count: sender.settle}); err != nil {
			return load.Served{}, err
		}
	} else if s.spec.Limit == 0 && s.spec.Warmup > 0 {
		if err := sender.send(datagramWarmup, time.Now(), phase{length: s.spec.Warmup}); err != nil {
			return load.Served{}, err
		}
	}
	start, err := r.barrier.wait(window.Begin)
	if err != nil {
		return load.Served{}, err
	}
	if err := sender.send(datagramMeasured, start, phase{s.spec.Duration, sender.limit}); err != nil {
		return load.Served{}, err
	}
	if r.doneSending() {
		if err := window.End(); err != nil {
			return load.Served{}, err
		}
	}
	return s.endUDP()
}

// udpSender sends the datagrams of one flow.
type udpSender struct {
	session    *session
	out, in    []byte
	question   [load.MinDatagram]byte // to settle a slice
	next       datagram
	unanswered uint64 // datagrams since the last answer
	pace       pace
	limit      uint64        // the flow's share of the spec's
	settle     uint64        // likewise
	lastSeen   time.Time     // when the server was last heard of
	lastCheck  time.Time     // when that was last checked
	counted    uint64        // datagrams in the window
	elapsed    time.Duration // the window's length
}

func newUDPSender(s *session) *udpSender {
	size := s.spec.DatagramSize()
	if s.spec.Workload == load.UDPRR {
		size = s.spec.RequestSize()
	}
	u := &udpSender{
		session: s, out: make([]byte, size), in: make([]byte, load.MaxDatagram),
		next: datagram{flow: s.flow}, pace: newPace(s.spec, s.id.index), lastSeen: time.Now(),
		limit: share(s.spec.Limit, s.id.index, s.spec.FlowCount()), settle: share(s.spec.Settle, s.id.index, s.spec.FlowCount()),
	}
	u.lastCheck = u.lastSeen
	return u
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

// due returns the time after the start of a phase at which its datagram of this number,
// counted from 0, is due. A phase ends with a pause after its last datagram, so that its
// length fits the rate: of count datagrams, or of the given length if count is 0.
func (p pace) due(number, count uint64, length time.Duration) time.Duration {
	due := time.Duration((float64(number) + p.turn) * p.gap)
	switch {
	case count == 0:
		return min(due, length)
	case number == count:
		return time.Duration(float64(count) * p.gap)
	}
	return due
}

// phase is the extent of one sending: a number of datagrams or, if that is 0, a time.
type phase struct {
	length time.Duration
	count  uint64
}

// send sends the datagrams of a phase, at least one. In a stream with answers, the last
// of a number of datagrams is answered.
func (u *udpSender) send(kind byte, start time.Time, p phase) error {
	length, count := p.length, p.count
	for sent := uint64(0); ; sent++ {
		if u.pace.gap > 0 {
			sleepUntil(start.Add(u.pace.due(sent, count, length)))
		}
		elapsed := time.Since(start)
		if count > 0 && sent == count || count == 0 && sent > 0 && elapsed >= length {
			if kind == datagramMeasured {
				u.counted, u.elapsed = sent, elapsed
			}
			return nil
		}
		if sent > 0 {
			if err := u.checkServer(start.Add(elapsed)); err != nil {
				return err
			}
		}
		if err := u.sendNext(kind, sent+1 == count); err != nil {
			return err
		}
	}
}

// checkServer checks now and then that the server still receives, in a stream without
// answers.
func (u *udpSender) checkServer(now time.Time) error {
	stall := u.session.spec.StallTime()
	if u.session.spec.Window > 0 || now.Sub(u.lastCheck) < stall/alivePerStall {
		return nil
	}
	u.lastCheck = now
	for {
		readable, err := u.session.readable()
		switch {
		case err != nil:
			return err
		case !readable && now.Sub(u.lastSeen) > stall:
			return fmt.Errorf("nothing heard from the server for %v: %w", stall, unix.ETIMEDOUT)
		case !readable:
			return nil
		}
		u.lastSeen = now
		if _, _, err := u.session.receiveOnce(u.in); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
}

// sendNext sends the next datagram, and waits for its answer if it asks for one.
func (u *udpSender) sendNext(kind byte, last bool) error {
	window := u.session.spec.Window
	u.unanswered++
	u.next.kind, u.next.answer = kind, window > 0 && (last || u.unanswered >= window)
	u.next.put(u.out)
	if err := u.session.send(u.out); err != nil {
		return err
	}
	number, answered := u.next.number, u.next.answer
	u.next.number++
	if !answered {
		return nil
	}
	u.unanswered = 0
	for {
		d, _, err := u.session.receive(u.in)
		if err != nil {
			return fmt.Errorf("no answer to datagram %d: %w", number, err)
		}
		if d.kind == datagramAnswer && d.number == number {
			return nil
		}
	}
}
