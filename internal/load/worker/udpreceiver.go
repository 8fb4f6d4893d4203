// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"mustang/internal/load"
	"mustang/internal/load/clock"
)

// alivePerStall is the number of messages to a client per stall time that say that the
// server receives.
const alivePerStall = 10

// errSilent ends a session whose client greeted and sent nothing after it.
var errSilent = errors.New("client sent nothing after its greeting")

// serve counts the datagrams of one flow until the client has its report.
func (udpStream) serve(s *session) error {
	r := &udpReceiver{session: s, report: s.served(), all: &s.run.datagrams, answer: make([]byte, load.MinDatagram), resting: s.spec.Standing}
	if s.spec.Workload == load.UDPRR {
		r.answer = make([]byte, s.spec.ResponseSize())
	}
	r.arrived = time.Since(r.all.start)
	buf := make([]byte, load.MaxDatagram)
	for {
		if r.resting {
			if err := s.park(udpRest); err != nil {
				return err
			}
		}
		d, n, err := s.receive(buf)
		switch {
		case err != nil && r.body != nil:
			return nil // the client's last datagram was lost
		case err != nil && !r.seen:
			return fmt.Errorf("%w: %w", errSilent, err)
		case err != nil:
			return fmt.Errorf("after %d datagrams in the window: %w", r.report.Received, err)
		}
		if over, err := r.handle(d, n); over || err != nil {
			return err
		}
	}
}

// udpReceiver is the server's state of one flow of datagrams.
type udpReceiver struct {
	session *session
	report  load.Served
	all     *datagramCounter
	arrived time.Duration // when the last datagram of the load came, since the run's start
	alive   time.Duration // when the client was last told that the server receives
	next    uint64        // the expected number
	seen    bool          // the client has sent a datagram since its greeting
	answer  []byte
	body    []byte // the report as it was sent

	// Of a standing connection:
	resting  bool // no load is expected
	counting bool // a burst with counted datagrams has begun
	burst    uint64
	opened   time.Duration // first counted arrival of the burst, since the run's start
	cpu      time.Duration // of the process then
	sums     datagramCounts
	question [countsSize]byte
}

// handle counts a datagram of n bytes or executes it. It reports whether it was the
// last.
func (r *udpReceiver) handle(d datagram, n int) (over bool, err error) {
	switch d.kind {
	case datagramHello:
		if d.flow != r.session.flow {
			return true, fmt.Errorf("%w: another client has its port", errSilent)
		}
		return false, r.session.welcome()
	case datagramWarmup:
		if err := r.count(d); err != nil {
			return true, err
		}
	case datagramMeasured:
		if r.session.spec.Standing {
			r.beginBurst()
		} else if r.report.Received == 0 {
			if err := r.all.open(r.arrived); err != nil {
				return true, err
			}
		}
		if err := r.count(d); err != nil {
			return true, err
		}
		r.report.Received++
		if r.session.spec.Workload == load.UDPRR {
			n = 1
		}
		r.report.Count += uint64(n)
	case datagramRest:
		return false, r.endBurst(d)
	case datagramEnd:
		return false, r.end()
	case datagramBye:
		return true, nil
	}
	if !d.answer {
		return false, nil
	}
	datagram{kind: datagramAnswer, flow: d.flow, number: d.number}.put(r.answer)
	return false, r.session.send(r.answer)
}

// count keeps the arrival time and the order of a datagram of the load. In a stream
// without answers it tells the client now and then that the server receives.
func (r *udpReceiver) count(d datagram) error {
	r.seen, r.resting = true, false
	r.arrived = time.Since(r.all.start)
	if d.number < r.next {
		r.report.OutOfOrder++
	} else {
		r.next = d.number + 1
	}
	spec := r.session.spec
	if spec.Window > 0 || spec.Workload == load.UDPRR || r.arrived-r.alive < spec.StallTime()/alivePerStall {
		return nil
	}
	r.alive = r.arrived
	datagram{kind: datagramAlive, flow: d.flow}.put(r.answer)
	return r.session.send(r.answer)
}

// end closes the flow, the first time, and sends the report.
func (r *udpReceiver) end() error {
	r.seen = true
	if r.body == nil {
		if err := r.close(); err != nil {
			return err
		}
	}
	return r.session.send(datagram{kind: datagramReport, flow: r.session.flow}.with(r.body))
}

// close makes the report, and publishes it if it is that of all flows.
func (r *udpReceiver) close() error {
	r.report.Overflowed = r.session.overflowed()
	var last bool
	var err error
	if !r.session.spec.Standing {
		if last, err = r.all.add(&r.report, r.arrived); err != nil {
			return err
		}
	}
	if r.body, err = json.Marshal(r.report); err != nil {
		return fmt.Errorf("encode report: %w", err)
	}
	if last {
		r.session.publish(r.report)
	} else if r.session.spec.Standing {
		r.session.publishFlow(r.report)
	}
	return nil
}

// datagramCounter adds up all flows of a UDP stream on the server. The window ends with
// the last datagram of any flow. With one flow it starts with the arrival before the
// first counted datagram. Several flows pause there until all are ready, which is no part
// of the window: then it starts with the first counted datagram. The clocks stop when the
// last flow has ended.
type datagramCounter struct {
	run   *serverRun
	start time.Time

	mu     sync.Mutex
	begun  bool
	opened time.Duration // when the window opened, since start
	ended  time.Duration // the last datagram of the flows that ended
	cpu    time.Duration // of the process when the window opened
	total  load.Served   // of the flows that ended
	flows  int           // that ended
}

// open opens the window, unless another flow has. before is the arrival of the flow's
// previous datagram.
func (c *datagramCounter) open(before time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.begun {
		return nil
	}
	if c.run.spec.Flows > 1 {
		before = time.Since(c.start)
	}
	c.begun, c.opened, c.cpu = true, before, clock.ProcessCPU()
	if c.run.clock == nil {
		return nil
	}
	return c.run.clock.Begin()
}

// add adds a flow that has ended; its last datagram came at the given time. The report of
// the last flow becomes that of all.
func (c *datagramCounter) add(r *load.Served, arrived time.Duration) (last bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flows++
	c.ended = max(c.ended, arrived)
	c.total.Count += r.Count
	c.total.Received += r.Received
	c.total.Overflowed += r.Overflowed
	c.total.OutOfOrder += r.OutOfOrder
	if c.flows < c.run.spec.Flows {
		return false, nil
	}
	r.Flows, r.Count, r.Received = c.flows, c.total.Count, c.total.Received
	r.Overflowed, r.OutOfOrder = c.total.Overflowed, c.total.OutOfOrder
	if !c.begun {
		return true, nil
	}
	r.Seconds = (c.ended - c.opened).Seconds()
	r.CPUSeconds = (clock.ProcessCPU() - c.cpu).Seconds()
	if c.run.clock != nil {
		r.Machine, err = c.run.clock.End()
	}
	return true, err
}
