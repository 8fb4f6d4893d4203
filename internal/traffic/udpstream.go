// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// udpStream is a one-way stream of datagrams, from client to server. Each says
// whether it is counted, so both ends count the same ones, and what is missing
// was lost. The received rate is by the clock of the end whose window is longer:
// the client's lasts from the first counted datagram to the last, the server's
// from the arrival before the first of them to that of the last.
type udpStream struct{}

func (udpStream) name() string    { return UDPStream }
func (udpStream) code() byte      { return 'u' }
func (udpStream) network() string { return "udp" }

func (u udpStream) drive(f *flows) (Measurement, error) {
	window, err := openWindow(f.spec)
	if err != nil {
		return Measurement{}, err
	}
	defer window.close()
	senders, reports := make([]*udpSender, len(f.sessions)), make([]Served, len(f.sessions))
	if err := f.each(func(i int, s *session) (err error) {
		senders[i] = newUDPSender(s)
		reports[i], err = u.flow(f, senders[i], window)
		return err
	}); err != nil {
		return Measurement{}, err
	}
	m, err := f.measurement(reports)
	if err != nil {
		return Measurement{}, err
	}
	var elapsed time.Duration
	for _, sender := range senders {
		m.Sent += sender.counted
		elapsed = max(elapsed, sender.elapsed)
	}
	m.ClientCPUSeconds, m.BusyNanos = window.cpu.Seconds(), window.busy
	// What a queue held back at the window's beginning arrives too fast.
	m.Seconds = max(m.Seconds, elapsed.Seconds())
	if f.spec.Window > 0 {
		m.Seconds, m.Machine = elapsed.Seconds(), window.machine
	}
	m.bytes()
	m.Offered = float64(m.Sent) * float64(f.spec.size()) * 8 / 1e9 / elapsed.Seconds()
	return m, nil
}

// flow drives one flow.
func (u udpStream) flow(f *flows, sender *udpSender, window *window) (Served, error) {
	s := sender.session
	if err := s.greet(u); err != nil {
		return Served{}, err
	}
	if sender.settle > 0 {
		if err := sender.send(datagramWarmup, time.Now(), sender.settle); err != nil {
			return Served{}, err
		}
	} else if s.spec.Limit == 0 && s.spec.Warmup > 0 {
		if err := sender.send(datagramWarmup, time.Now(), 0); err != nil {
			return Served{}, err
		}
	}
	start, err := f.gate.pass(window.begin)
	if err != nil {
		return Served{}, err
	}
	if err := sender.send(datagramMeasured, start, sender.limit); err != nil {
		return Served{}, err
	}
	if f.sent() {
		if err := window.end(); err != nil {
			return Served{}, err
		}
	}
	return s.endUDP()
}

// udpSender sends a stream's datagrams.
type udpSender struct {
	session *session
	out, in []byte
	next    datagram
	open    uint64        // datagrams since the last answer
	gap     float64       // nanoseconds between the beginnings of datagrams; 0: none
	limit   uint64        // this flow's part of the spec's
	settle  uint64        // likewise
	heard   time.Time     // when the server was last heard
	looked  time.Time     // when that was last looked for
	counted uint64        // datagrams in the window
	elapsed time.Duration // the window's length
}

func newUDPSender(s *session) *udpSender {
	u := &udpSender{
		session: s, out: make([]byte, s.spec.size()), in: make([]byte, maxDatagram),
		next: datagram{flow: s.flow}, heard: time.Now(),
		limit: portion(s.spec.Limit, s.share.index, s.spec.flows()), settle: portion(s.spec.Settle, s.share.index, s.spec.flows()),
	}
	u.looked = u.heard
	if s.spec.Rate > 0 {
		u.gap = float64(s.spec.size()) * 8e9 / float64(s.spec.Rate) * float64(s.spec.flows())
	}
	return u
}

// due is when a datagram of a paced flow is to be sent after the start of its
// phase. Flows take turns.
func (u *udpSender) due(number uint64) time.Duration {
	turn := float64(u.session.share.index) / float64(u.session.spec.flows())
	return time.Duration((float64(number) + turn) * u.gap)
}

// send sends datagrams of a kind, just so many or, where that is 0, for as long as
// the spec says. At least one is sent; the last of a number is answered where any
// are. A paced phase also lasts for the pause after its last datagram, so that its
// length fits its rate.
func (u *udpSender) send(kind byte, start time.Time, count uint64) error {
	length := u.session.spec.Duration
	if kind == datagramWarmup {
		length = u.session.spec.Warmup
	}
	for sent := uint64(0); ; sent++ {
		if u.gap > 0 {
			due := u.due(sent)
			switch {
			case count == 0:
				due = min(due, length)
			case sent == count:
				due = time.Duration(float64(count) * u.gap)
			}
			pace(start.Add(due))
		}
		elapsed := time.Since(start)
		if count > 0 && sent == count || count == 0 && sent > 0 && elapsed >= length {
			if kind == datagramMeasured {
				u.counted, u.elapsed = sent, elapsed
			}
			return nil
		}
		if sent > 0 {
			if err := u.listen(start.Add(elapsed)); err != nil {
				return err
			}
		}
		if err := u.one(kind, sent+1 == count); err != nil {
			return err
		}
	}
}

// listen looks now and then whether the server still hears, where no datagram is
// answered.
func (u *udpSender) listen(now time.Time) error {
	stall := u.session.spec.stall()
	if u.session.spec.Window > 0 || now.Sub(u.looked) < stall/aliveShare {
		return nil
	}
	u.looked = now
	for {
		heard, err := u.session.readable()
		switch {
		case err != nil:
			return err
		case !heard && now.Sub(u.heard) > stall:
			return fmt.Errorf("nothing heard of the server for %v: %w", stall, unix.ETIMEDOUT)
		case !heard:
			return nil
		}
		u.heard = now
		if _, _, err := u.session.receiveOnce(u.in); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
}

// pace waits until a datagram is due. One that is late is sent at once, so that
// the rate is kept over time.
func pace(due time.Time) {
	if ahead := time.Until(due); ahead > 0 {
		ts := unix.NsecToTimespec(int64(ahead))
		_ = unix.Nanosleep(&ts, nil) // if cut short, the datagram is a little early
	}
}

// one sends the next datagram, and waits for its answer if it has one.
func (u *udpSender) one(kind byte, last bool) error {
	window := u.session.spec.Window
	u.open++
	u.next.kind, u.next.answer = kind, window > 0 && (last || u.open >= window)
	u.next.put(u.out)
	if err := u.session.send(u.out); err != nil {
		return err
	}
	number, answered := u.next.number, u.next.answer
	u.next.number++
	if !answered {
		return nil
	}
	u.open = 0
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
