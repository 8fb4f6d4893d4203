// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// aliveShare is how many times in a stall a client is told that it is heard.
const aliveShare = 10

// udpTally is what a server counts of a stream of datagrams.
type udpTally struct {
	session  *session
	report   Served
	clock    *machineClock // nil where the client measures
	start    time.Time
	arrived  time.Duration // when the last datagram of the load came, since start
	alive    time.Duration // when the client was last told that it is heard
	began    time.Duration // when the window opened
	cpuBegan time.Duration
	next     uint64 // the number that is expected next
	heard    bool   // the client has spoken since it greeted
	answer   []byte
	body     []byte // the report as it was sent
}

func (udpStream) serve(s *session) error {
	t := &udpTally{session: s, report: s.served(), start: time.Now(), answer: make([]byte, MinDatagram)}
	if s.spec.Window == 0 {
		clock, err := openMachineClock()
		if err != nil {
			return err
		}
		defer clock.close()
		t.clock = clock
	}
	buf := make([]byte, maxDatagram)
	for {
		d, n, err := s.receive(buf)
		switch {
		case err != nil && t.body != nil:
			return nil // the client's last word was lost
		case err != nil && !t.heard:
			return fmt.Errorf("%w: %w", errSilent, err)
		case err != nil:
			return fmt.Errorf("after %d datagrams in the window: %w", t.report.Received, err)
		}
		if over, err := t.take(d, n); over || err != nil {
			return err
		}
	}
}

// take counts a datagram of n bytes or does what it asks for. It reports
// whether it was the last.
func (t *udpTally) take(d datagram, n int) (over bool, err error) {
	switch d.kind {
	case datagramHello:
		if d.flow != t.session.flow {
			return true, fmt.Errorf("%w: its port begins anew", errSilent)
		}
		return false, t.session.welcome()
	case datagramWarmup:
		if err := t.load(d); err != nil {
			return true, err
		}
	case datagramMeasured:
		if t.report.Received == 0 {
			if err := t.begin(); err != nil {
				return true, err
			}
		}
		if err := t.load(d); err != nil {
			return true, err
		}
		t.report.Received++
		t.report.Count += uint64(n)
	case datagramEnd:
		return false, t.end()
	case datagramBye:
		return true, nil
	}
	if !d.answer {
		return false, nil
	}
	datagram{kind: datagramAnswer, flow: d.flow, number: d.number}.put(t.answer)
	return false, t.session.send(t.answer)
}

// load notes the arrival and the order of a datagram of the load. A client that
// waits for no answers is told now and then that it is heard.
func (t *udpTally) load(d datagram) error {
	t.heard = true
	t.arrived = time.Since(t.start)
	if d.number < t.next {
		t.report.OutOfOrder++
	} else {
		t.next = d.number + 1
	}
	spec := t.session.spec
	if spec.Window > 0 || t.arrived-t.alive < spec.stall()/aliveShare {
		return nil
	}
	t.alive = t.arrived
	datagram{kind: datagramAlive, flow: d.flow}.put(t.answer)
	return t.session.send(t.answer)
}

// begin opens the window: with the arrival before that of its first datagram.
func (t *udpTally) begin() error {
	t.began, t.cpuBegan = t.arrived, processCPU()
	if t.clock == nil {
		return nil
	}
	return t.clock.begin()
}

// end closes the window when it is first asked to, and sends the report.
func (t *udpTally) end() error {
	t.heard = true
	if t.body == nil {
		if err := t.close(); err != nil {
			return err
		}
	}
	return t.session.send(datagram{kind: datagramReport, flow: t.session.flow}.with(t.body))
}

// close makes and publishes the report.
func (t *udpTally) close() (err error) {
	r := &t.report
	r.Overflowed = t.session.overflowed()
	if r.Received > 0 {
		r.Seconds = (t.arrived - t.began).Seconds()
		r.CPUSeconds = (processCPU() - t.cpuBegan).Seconds()
		if t.clock != nil {
			if r.Machine, err = t.clock.end(); err != nil {
				return err
			}
		}
	}
	if t.body, err = json.Marshal(r); err != nil {
		return errors.Join(errors.New("encode report"), err)
	}
	t.session.publish(*r)
	return nil
}
