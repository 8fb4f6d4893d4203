// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
)

// flows are the connections of one run, seen from the client. Each is driven by
// a thread of its own; all of them sit on the agent's seat.
type flows struct {
	spec     Spec
	seat     seat
	sessions []*session
	gate     *gate
	// left is what a TCP stream with a limit has still to send, in bytes: the
	// flows take from it until there is none, and so end together.
	left atomic.Int64
	// sending is how many flows have not sent all that they have to.
	sending atomic.Int32

	mu  sync.Mutex
	err error // of the flow that failed first
}

// openFlows opens the client's ends of what the workload runs over.
func openFlows(ctx context.Context, load workload, spec Spec) (*flows, error) {
	f := &flows{spec: spec, gate: newGate(spec.flows())}
	f.left.Store(int64(spec.Limit))
	f.sending.Store(int32(spec.flows()))
	group := rand.Uint64()
	for i := range spec.flows() {
		s, err := open(ctx, load, spec)
		if err != nil {
			f.close()
			return nil, err
		}
		s.share = share{group: group, index: i}
		f.sessions = append(f.sessions, s)
	}
	return f, nil
}

// each runs a function for every flow on a thread of its own and waits for all.
// The first that fails ends the others.
func (f *flows) each(fn func(i int, s *session) error) error {
	var threads sync.WaitGroup
	for i, s := range f.sessions {
		threads.Go(func() {
			if err := f.seat.run(func() error { return fn(i, s) }); err != nil {
				f.fail(s, err)
			}
		})
	}
	threads.Wait()
	return f.err
}

// fail notes why a flow failed and ends the others.
func (f *flows) fail(failed *session, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return
	}
	f.err = err
	f.gate.cancel()
	for _, s := range f.sessions {
		if s != failed {
			s.interrupt()
		}
	}
}

// take takes up to n bytes of those that are left to send, 0 when there are none.
func (f *flows) take(n int64) int64 {
	left := f.left.Add(-n) + n
	return max(min(left, n), 0)
}

// sent notes that a flow has sent all that it has to, and tells whether it is
// the last.
func (f *flows) sent() bool { return f.sending.Add(-1) == 0 }

// interrupt ends all flows from another goroutine.
func (f *flows) interrupt() {
	f.gate.cancel()
	for _, s := range f.sessions {
		s.interrupt()
	}
}

// close closes all flows.
func (f *flows) close() {
	for _, s := range f.sessions {
		s.close()
	}
}

// measurement starts a measurement from the reports that the flows got. The
// figures of all are in the report that the server made last; addresses are those
// of the first flow.
func (f *flows) measurement(reports []Served) (Measurement, error) {
	first, s := reports[0], f.sessions[0]
	all := slices.MaxFunc(reports, func(a, b Served) int { return a.Flows - b.Flows })
	if all.Flows != len(f.sessions) {
		return Measurement{}, fmt.Errorf("the server has figures of %d flows, not of %d", all.Flows, len(f.sessions))
	}
	m := Measurement{
		Workload:         f.spec.Workload,
		Flows:            len(f.sessions),
		Count:            all.Count,
		Seconds:          all.Seconds,
		Machine:          all.Machine,
		Received:         all.Received,
		Overflowed:       all.Overflowed,
		OutOfOrder:       all.OutOfOrder,
		ServerCPUSeconds: all.CPUSeconds,
		ClientLocal:      s.local,
		ClientPeer:       s.peer,
		ServerLocal:      first.Local,
		ServerPeer:       first.Peer,
		ClientCongestion: s.congestion,
		ServerCongestion: first.Congestion,
		Window:           f.spec.Window,
	}
	for _, s := range f.sessions {
		m.ClientLocals = append(m.ClientLocals, s.local)
		m.Retransmits += s.retransmits()
	}
	return m, nil
}

// portion is a flow's part of what all flows share evenly.
func portion(all uint64, index, flows int) uint64 {
	n := uint64(flows)
	part := all / n
	if uint64(index) < all%n {
		part++
	}
	return part
}

// share says which of a run's flows a session is.
type share struct {
	group uint64 // drawn anew for each run
	index int
}
