// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"sync"
	"time"
)

// gate holds the flows of a run back until all have come to it, and lets them go
// at the same moment.
type gate struct {
	mu        sync.Mutex
	flows     int
	waiting   int
	start     time.Time
	err       error
	open      chan struct{}
	cancelled sync.Once
	cut       chan struct{}
}

func newGate(flows int) *gate {
	return &gate{flows: flows, open: make(chan struct{}), cut: make(chan struct{})}
}

// cancel ends the wait of those who are at the gate, or come to it.
func (g *gate) cancel() { g.cancelled.Do(func() { close(g.cut) }) }

// pass waits for the others. The last to come calls begin, unless it is nil. All
// return the same moment, when it has come. A flow that is alone never waits.
func (g *gate) pass(begin func() error) (time.Time, error) {
	g.mu.Lock()
	g.waiting++
	if g.waiting == g.flows {
		if begin != nil {
			g.err = begin()
		}
		g.start = time.Now().Add(g.lead())
		close(g.open)
	}
	g.mu.Unlock()
	select {
	case <-g.open:
	case <-g.cut:
		return time.Time{}, errCancelled
	}
	if g.flows > 1 {
		pace(g.start)
	}
	return g.start, g.err
}

// lead is how long it may take until all have heard that the gate opens. No flow
// carries load yet that would keep the others from hearing it.
func (g *gate) lead() time.Duration {
	if g.flows == 1 {
		return 0
	}
	return time.Millisecond + time.Duration(g.flows)*50*time.Microsecond
}
