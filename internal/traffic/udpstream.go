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

func (udpStream) drive(s *session) (Measurement, error) {
	u := newUDPSender(s)
	var err error
	if s.spec.Settle > 0 {
		_, err = u.send(datagramWarmup, s.spec.Settle, 0)
	} else if s.spec.Limit == 0 && s.spec.Warmup > 0 {
		_, err = u.send(datagramWarmup, 0, s.spec.Warmup)
	}
	if err != nil {
		return Measurement{}, err
	}
	window, err := openWindow(s.spec)
	if err != nil {
		return Measurement{}, err
	}
	defer window.close()
	if err := window.begin(); err != nil {
		return Measurement{}, err
	}
	elapsed, err := u.send(datagramMeasured, s.spec.Limit, s.spec.Duration)
	if err != nil {
		return Measurement{}, err
	}
	if err := window.end(); err != nil {
		return Measurement{}, err
	}
	report, err := s.endUDP()
	if err != nil {
		return Measurement{}, err
	}
	m := s.measurement(report)
	m.Sent, m.Received, m.Overflowed, m.OutOfOrder = u.counted, report.Received, report.Overflowed, report.OutOfOrder
	m.ClientCPUSeconds, m.BusyNanos = window.cpu.Seconds(), window.busy
	// What a queue held back at the window's beginning arrives too fast.
	m.Seconds = max(m.Seconds, elapsed.Seconds())
	if s.spec.Window > 0 {
		m.Seconds, m.Machine = elapsed.Seconds(), window.machine
	}
	m.Unit, m.CPUUnit = "Gbit/s", "MB"
	m.Units = float64(m.Count) / 1e6
	if m.Seconds > 0 {
		m.Rate = float64(m.Count) * 8 / 1e9 / m.Seconds
	}
	m.Offered = float64(m.Sent) * float64(s.spec.size()) * 8 / 1e9 / elapsed.Seconds()
	return m, nil
}

// udpSender sends a stream's datagrams.
type udpSender struct {
	session *session
	out, in []byte
	next    datagram
	open    uint64        // datagrams since the last answer
	gap     time.Duration // between the beginnings of datagrams; 0: none
	heard   time.Time     // when the server was last heard
	looked  time.Time     // when that was last looked for
	counted uint64        // datagrams in the window
}

func newUDPSender(s *session) *udpSender {
	u := &udpSender{
		session: s, out: make([]byte, s.spec.size()), in: make([]byte, maxDatagram),
		next: datagram{flow: s.flow}, heard: time.Now(),
	}
	u.looked = u.heard
	if s.spec.Rate > 0 {
		u.gap = time.Duration(float64(s.spec.size()) * 8 * 1e9 / float64(s.spec.Rate))
	}
	return u
}

// send sends datagrams of a kind, just so many or, where that is 0, for so long.
// It returns how long it took. At least one is sent; the last of a number is
// answered where any are.
func (u *udpSender) send(kind byte, count uint64, length time.Duration) (time.Duration, error) {
	start := time.Now()
	for sent := uint64(1); ; sent++ {
		if u.gap > 0 {
			pace(start.Add(time.Duration(sent-1) * u.gap))
		}
		last := sent == count
		if err := u.one(kind, last); err != nil {
			return 0, err
		}
		elapsed := time.Since(start)
		if last || count == 0 && elapsed >= length {
			if kind == datagramMeasured {
				u.counted = sent
			}
			return elapsed, nil
		}
		if err := u.listen(start.Add(elapsed)); err != nil {
			return 0, err
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
