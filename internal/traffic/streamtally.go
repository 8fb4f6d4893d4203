// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// States of a [streamTally].
const (
	tallyWarm = iota
	tallyOpen
	tallyClosed
)

// streamTally is what a server counts of all flows of a TCP stream together. The
// window opens and closes with a read of any flow that has returned, so that it
// is the same for all; of each other flow, one read that had returned just then
// may be counted a moment late.
type streamTally struct {
	group  *group
	total  atomic.Uint64 // bytes of all flows since they began
	state  atomic.Int32
	closed chan struct{} // closed with the window

	mu     sync.Mutex
	start  time.Time     // when the last flow began
	began  time.Duration // when the window opened, since start
	before uint64        // total then
	ended  int           // flows that have nothing more to send
	report Served        // of all flows, once the window is closed
}

// begin starts the time of the run, when the first flow gets here; all of them
// have come then. A run with a limit counts from here.
func (t *streamTally) begin() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.start.IsZero() {
		return nil
	}
	t.start = time.Now()
	if t.group.spec.Limit == 0 {
		return nil
	}
	t.state.Store(tallyOpen)
	return t.group.clock.begin()
}

// take counts what a flow has read. It reports whether the window is over.
func (t *streamTally) take(n int) (over bool, err error) {
	now := time.Since(t.start)
	total := t.total.Add(uint64(n))
	spec := &t.group.spec
	switch t.state.Load() {
	case tallyClosed:
		return true, nil
	case tallyWarm:
		if now >= spec.Warmup {
			return false, t.open(now)
		}
	case tallyOpen:
		if spec.Limit > 0 && total >= spec.Limit || spec.Limit == 0 && now-t.began >= spec.Duration {
			return true, t.close(now)
		}
	}
	return false, nil
}

// open opens the window, unless another flow has.
func (t *streamTally) open(now time.Duration) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.state.Load() != tallyWarm {
		return nil
	}
	t.began, t.before = now, t.total.Load()
	err := t.group.clock.begin()
	t.state.Store(tallyOpen)
	return err
}

// close closes the window, unless another flow has, and makes the figures.
func (t *streamTally) close(now time.Duration) (err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.state.Load() != tallyOpen {
		return nil
	}
	r := &t.report
	r.Count, r.Seconds, r.Flows = t.total.Load()-t.before, (now - t.began).Seconds(), t.group.spec.Flows
	clock := t.group.clock
	if r.Machine, err = clock.end(); err != nil {
		return err
	}
	r.CPUSeconds = clock.cpuElapsed.Seconds()
	t.state.Store(tallyClosed)
	close(t.closed)
	return nil
}

// errShort ends a run whose client has sent less than it was to.
var errShort = errors.New("client left")

// end waits for the other flows of a run with a limit, after a flow has sent all
// that it has.
func (t *streamTally) end(s *session) error {
	t.mu.Lock()
	t.ended++
	last := t.ended == t.group.spec.Flows
	t.mu.Unlock()
	if t.group.spec.Limit == 0 || last && t.state.Load() != tallyClosed {
		return errShort
	}
	select {
	case <-t.closed:
		return nil
	case <-t.group.broken:
		return errBroken
	case <-s.cut:
		return errCancelled
	}
}

// counted is how many bytes are in the window so far.
func (t *streamTally) counted() uint64 {
	if t.state.Load() == tallyWarm {
		return 0
	}
	return t.total.Load() - t.before
}

// of returns the figures of all flows as a session reports them.
func (t *streamTally) of(s *session) Served {
	r, own := t.report, s.served()
	r.Workload, r.Local, r.Peer, r.Congestion = own.Workload, own.Local, own.Peer, own.Congestion
	return r
}
