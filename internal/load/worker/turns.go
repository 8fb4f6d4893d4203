// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"mustang/internal/load"
	"mustang/internal/load/clock"
)

// cancelGrace is the time that a cancelled slice has to end by itself.
const cancelGrace = load.StopGrace / 2

// open opens a standing connection and keeps it.
func (w *worker) open(ctx context.Context, spec load.Spec) (_ *load.Conn, err error) {
	spec.Standing = true
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	w.begin()
	defer func() {
		if err != nil {
			w.end()
		}
	}()
	w.mu.Lock()
	w.raiseThreads(spec.FlowCount())
	w.mu.Unlock()
	c, err := w.openStanding(ctx, spec)
	if err != nil {
		return nil, runError(ctx, spec, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lastConn++
	c.conn.ID = w.lastConn
	w.conns[c.conn.ID] = c
	return &c.conn, nil
}

// mostShuts bounds the connections that are shut side by side.
const mostShuts = 64

// takeTurn waits until no other command uses standing connections: slices take all shares
// of the turn, the end of a connection one. The caller releases them.
func (w *worker) takeTurn(ctx context.Context, shares int64) error {
	if err := w.turn.Acquire(ctx, shares); err != nil {
		return errCancelled
	}
	return nil
}

// standing finds a connection.
func (w *worker) standing(id uint64) (*standingConn, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c := w.conns[id]; c != nil {
		return c, nil
	}
	return nil, fmt.Errorf("no connection %d", id)
}

// slices runs slices on one thread.
func (w *worker) slices(ctx context.Context, slices []load.Slice) ([]load.SliceResult, error) {
	if err := w.takeTurn(ctx, mostShuts); err != nil {
		return nil, err
	}
	defer w.turn.Release(mostShuts)
	conns := make([]*standingConn, len(slices))
	for i, s := range slices {
		var err error
		if conns[i], err = w.standing(s.Conn); err != nil {
			return nil, err
		}
	}
	if w.machine == nil {
		machine, err := clock.OpenMachine()
		if err != nil {
			return nil, err
		}
		w.machine = machine
	}
	defer interruptAfter(ctx, conns)()
	results := make([]load.SliceResult, len(slices))
	err := w.thread.run(func() error {
		for i, s := range slices {
			if ctx.Err() != nil {
				return errCancelled
			}
			var err error
			if results[i], err = conns[i].slice(s, w.machine); err != nil {
				return runError(ctx, conns[i].run.spec, fmt.Errorf("slice %d: %w", i, err))
			}
		}
		return nil
	})
	w.collect()
	return results, err
}

// oneSlice is a run of a workload that carries load in slices only.
func (w *worker) oneSlice(ctx context.Context, spec load.Spec) (m load.Measurement, err error) {
	machine, err := clock.OpenMachine()
	if err != nil {
		return load.Measurement{}, err
	}
	defer machine.Close()
	spec.Standing = true
	c, err := w.openStanding(ctx, spec)
	if err != nil {
		return load.Measurement{}, err
	}
	defer c.close()
	defer context.AfterFunc(ctx, c.run.interrupt)()
	err = w.thread.run(func() error {
		s := load.Slice{Lead: spec.Warmup, Duration: spec.Duration}
		if s.Lead == 0 {
			s.Lead = -1
		}
		_, err := c.slice(s, machine)
		return err
	})
	if err != nil {
		return load.Measurement{}, err
	}
	return c.finish()
}

// interruptAfter interrupts connections if their slices go on for a while after ctx has
// ended. The slices' end calls the function that it returns.
func interruptAfter(ctx context.Context, conns []*standingConn) (end func()) {
	over := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-over:
		case <-time.After(cancelGrace):
			for _, c := range conns {
				c.run.interrupt()
			}
		}
	})
	return func() {
		stop()
		close(over)
	}
}

// shut closes a standing connection and returns its measurement.
func (w *worker) shut(ctx context.Context, id uint64) (load.Measurement, error) {
	if err := w.takeTurn(ctx, 1); err != nil {
		return load.Measurement{}, err
	}
	defer w.turn.Release(1)
	c, err := w.standing(id)
	if err != nil {
		return load.Measurement{}, err
	}
	w.mu.Lock()
	delete(w.conns, id)
	w.mu.Unlock()
	defer w.end()
	defer c.close()
	defer context.AfterFunc(ctx, c.run.interrupt)()
	m, err := c.finish()
	if err != nil {
		return load.Measurement{}, runError(ctx, c.run.spec, err)
	}
	return m, nil
}

// closeStanding closes all standing connections when the agent ends. No command runs
// then.
func (w *worker) closeStanding() {
	for _, c := range w.conns {
		c.run.interrupt()
		c.close()
		w.end()
	}
	clear(w.conns)
	if w.machine != nil {
		w.machine.Close()
	}
}

// runError says which traffic an error ended, and errCancelled if ctx ended it.
func runError(ctx context.Context, spec load.Spec, err error) error {
	if ctx.Err() != nil || errors.Is(err, errCancelled) {
		return errCancelled
	}
	return fmt.Errorf("%s to %s: %w", spec.Workload, spec.Target, err)
}
