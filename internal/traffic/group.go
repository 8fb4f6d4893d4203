// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// group is what the connections of one run have in common on the server.
type group struct {
	id      uint64
	spec    Spec
	clock   *machineClock // nil where the client measures
	publish func(Served)
	ready   chan struct{} // closed when all flows are there
	broken  chan struct{} // closed when one of them failed
	breaks  sync.Once
	stream  streamTally
	packets packetTally

	joined, members int // guarded by the worker's lock
}

// join makes a connection part of its run, which begins with its first one.
func (w *worker) join(a announcement) (*group, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	g := w.groups[a.group]
	if g == nil {
		g = &group{id: a.group, spec: a.spec, publish: w.setLast, ready: make(chan struct{}), broken: make(chan struct{})}
		g.stream.group, g.stream.closed = g, make(chan struct{})
		g.packets.group, g.packets.start = g, time.Now()
		if a.spec.serverMeasures() {
			var err error
			if g.clock, err = openMachineClock(); err != nil {
				return nil, err
			}
		}
		w.groups[a.group] = g
		w.seats(g.spec.Flows)
	}
	if g.spec != a.spec || g.joined == a.spec.Flows {
		return nil, fmt.Errorf("a flow that does not belong to its run of %d", g.spec.Flows)
	}
	g.joined++
	g.members++
	if g.joined == g.spec.Flows {
		close(g.ready)
	}
	return g, nil
}

// leave ends a connection's part in its run. One that failed ends the others.
func (w *worker) leave(g *group, err error) {
	if err != nil {
		g.fail()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	g.members--
	if g.members > 0 {
		return
	}
	delete(w.groups, g.id)
	w.seats(-g.spec.Flows)
	if g.clock != nil {
		g.clock.close()
	}
}

// fail tells all flows that one of them failed.
func (g *group) fail() { g.breaks.Do(func() { close(g.broken) }) }

// errBroken ends a flow because of another one.
var errBroken = errors.New("another flow of the run failed")

// await waits until all flows of the session's run are there.
func (g *group) await(s *session) error {
	timer := time.NewTimer(s.spec.stall())
	defer timer.Stop()
	select {
	case <-g.ready:
		return nil
	case <-g.broken:
		return errBroken
	case <-s.cut:
		return errCancelled
	case <-timer.C:
		return fmt.Errorf("not all %d flows came within %v: %w", g.spec.Flows, s.spec.stall(), unix.ETIMEDOUT)
	}
}

// serverMeasures tells whether the server's clocks bound the window.
func (s Spec) serverMeasures() bool {
	return s.Workload == TCPStream || s.Workload == UDPStream && s.Window == 0
}
