// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"
)

// aliveShare is how many times in a stall a client is told that it is heard.
const aliveShare = 10

// packetTally is what a server counts of all flows of a UDP stream together. Its
// window lasts until the last datagram of any flow. With one flow it is open from
// the arrival before the first that is counted. Several flows pause there until all
// are ready, which is none of it: then it is open from the first that is counted.
// The clocks stop when the last flow has ended.
type packetTally struct {
	group *group
	start time.Time // of the run's time

	mu       sync.Mutex
	begun    bool
	began    time.Duration // when the window opened
	ended    time.Duration // when the last datagram of the flows that ended came
	cpuBegan time.Duration
	total    Served // of the flows that ended
	flows    int    // that ended
}

// begin opens the window, unless another flow has. The flow's last datagram came
// at the time given.
func (t *packetTally) begin(at time.Duration) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.begun {
		return nil
	}
	if t.group.spec.Flows > 1 {
		at = time.Since(t.start)
	}
	t.begun, t.began, t.cpuBegan = true, at, processCPU()
	if t.group.clock == nil {
		return nil
	}
	return t.group.clock.begin()
}

// add adds a flow that has ended, the last of whose datagrams came at that time.
// The report of the last flow becomes that of all.
func (t *packetTally) add(r *Served, at time.Duration) (last bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.flows++
	t.ended = max(t.ended, at)
	t.total.Count += r.Count
	t.total.Received += r.Received
	t.total.Overflowed += r.Overflowed
	t.total.OutOfOrder += r.OutOfOrder
	if t.flows < t.group.spec.Flows {
		return false, nil
	}
	r.Flows, r.Count, r.Received = t.flows, t.total.Count, t.total.Received
	r.Overflowed, r.OutOfOrder = t.total.Overflowed, t.total.OutOfOrder
	if !t.begun {
		return true, nil
	}
	r.Seconds = (t.ended - t.began).Seconds()
	r.CPUSeconds = (processCPU() - t.cpuBegan).Seconds()
	if t.group.clock != nil {
		r.Machine, err = t.group.clock.end()
	}
	return true, err
}

// udpTally is what a server counts of one flow of datagrams.
type udpTally struct {
	session *session
	report  Served
	all     *packetTally
	arrived time.Duration // when the last datagram of the load came, since the run's start
	alive   time.Duration // when the client was last told that it is heard
	next    uint64        // the number that is expected next
	heard   bool          // the client has spoken since it greeted
	answer  []byte
	body    []byte // the report as it was sent
}

func (udpStream) serve(s *session) error {
	t := &udpTally{session: s, report: s.served(), all: &s.group.packets, answer: make([]byte, MinDatagram)}
	t.arrived = time.Since(t.all.start)
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
			if err := t.all.begin(t.arrived); err != nil {
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
	t.arrived = time.Since(t.all.start)
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

// close makes the report, and publishes it if it is that of all flows.
func (t *udpTally) close() error {
	t.report.Overflowed = t.session.overflowed()
	last, err := t.all.add(&t.report, t.arrived)
	if err != nil {
		return err
	}
	if t.body, err = json.Marshal(t.report); err != nil {
		return errors.Join(errors.New("encode report"), err)
	}
	if last {
		t.session.publish(t.report)
	}
	return nil
}
