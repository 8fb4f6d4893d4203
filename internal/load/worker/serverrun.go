// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/load"
	"mustang/internal/load/clock"
)

// serverRun is the server's state of one run, shared by its connections.
type serverRun struct {
	id        uint64
	spec      load.Spec
	clock     *clock.Machine // nil if the client measures
	publish   func(load.Served)
	ready     chan struct{} // closed when all flows have joined
	failed    chan struct{} // closed when a flow has failed
	failOnce  sync.Once
	stream    streamCounter
	datagrams datagramCounter

	joined, members int // guarded by the worker's lock

	mu    sync.Mutex
	total load.Served // of the flows of a standing connection that have ended
}

// serve runs a session's part of its run, and keeps its error as the last figures'.
func (w *worker) serve(s *session, h header, part func() error) error {
	run, err := w.join(h)
	if err == nil {
		s.run = run
		err = part()
		w.leave(run, err)
	}
	if err != nil && !s.reported && !errors.Is(err, errSilent) && !errors.Is(err, errOtherFlow) {
		r := s.served()
		r.Error = fmt.Sprintf("%s from %s: %v", s.spec.Workload, s.peer, err)
		w.setLast(r)
	}
	return err
}

// join adds a connection to its run. The first one creates the run.
func (w *worker) join(h header) (*serverRun, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.runs[h.run]
	if r == nil {
		r = &serverRun{id: h.run, spec: h.spec, publish: w.setLast, ready: make(chan struct{}), failed: make(chan struct{})}
		r.stream.run, r.stream.closed = r, make(chan struct{})
		r.datagrams.run, r.datagrams.start = r, time.Now()
		if h.spec.ServerMeasures() {
			var err error
			if r.clock, err = clock.OpenMachine(); err != nil {
				return nil, err
			}
		}
		w.runs[h.run] = r
		if r.spec.Standing {
			w.raiseThreads(r.spec.Flows)
		} else {
			w.addThreads(r.spec.Flows)
		}
	}
	if r.spec != h.spec || r.joined == h.spec.Flows {
		return nil, fmt.Errorf("flow does not belong to its run of %d flows", r.spec.Flows)
	}
	r.joined++
	r.members++
	if r.joined == r.spec.Flows {
		close(r.ready)
	}
	return r, nil
}

// leave removes a connection from its run. An error ends the run's other connections.
func (w *worker) leave(r *serverRun, err error) {
	if err != nil {
		r.fail()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	r.members--
	if r.members > 0 {
		return
	}
	delete(w.runs, r.id)
	if !r.spec.Standing {
		w.addThreads(-r.spec.Flows)
	}
	if r.clock != nil {
		r.clock.Close()
	}
}

// publishFlow adds the figures of a flow of a standing connection to those of the others,
// and publishes the sum after the last one.
func (s *session) publishFlow(r load.Served) {
	s.reported = true
	t := &s.run.total
	s.run.mu.Lock()
	defer s.run.mu.Unlock()
	r.Flows += t.Flows
	r.Count += t.Count
	r.Received += t.Received
	r.Overflowed += t.Overflowed
	r.OutOfOrder += t.OutOfOrder
	r.CPUSeconds = max(r.CPUSeconds, t.CPUSeconds)
	*t = r
	if t.Flows == s.run.spec.Flows {
		s.run.publish(*t)
	}
}

// fail tells all flows that one of them has failed.
func (r *serverRun) fail() { r.failOnce.Do(func() { close(r.failed) }) }

// errOtherFlow ends a flow because another one has failed.
var errOtherFlow = errors.New("another flow of the run failed")

// await waits until all flows of the session's run have joined.
func (r *serverRun) await(s *session) error {
	timer := time.NewTimer(s.spec.StallTime())
	defer timer.Stop()
	select {
	case <-r.ready:
		return nil
	case <-r.failed:
		return errOtherFlow
	case <-s.interrupted:
		return errCancelled
	case <-timer.C:
		return fmt.Errorf("not all of %d flows joined within %v: %w", r.spec.Flows, s.spec.StallTime(), unix.ETIMEDOUT)
	}
}
