// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"mustang/internal/load"
)

func (w *worker) open(ctx context.Context, spec load.Spec) (load.Conn, error) {
	if err := spec.Validate(); err != nil {
		return load.Conn{}, err
	}
	w.begin(spec.FlowCount())
	c, err := w.openPersistent(ctx, spec)
	if err != nil {
		w.end()
		return load.Conn{}, runError(ctx, spec, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lastConn++
	w.conns[w.lastConn] = c
	return load.Conn{ID: w.lastConn}, nil
}

func (w *worker) connection(id uint64) (*connection, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c := w.conns[id]; c != nil {
		return c, nil
	}
	return nil, fmt.Errorf("no connection %d", id)
}

// mostSlices is the number of slices after which garbage is collected: their results take tens of megabytes.
const mostSlices = 1 << 16

func (w *worker) slices(ctx context.Context, slices []load.Slice) ([]load.SliceResult, error) {
	w.turn.Lock()
	defer w.turn.Unlock()
	conns := make([]*connection, len(slices))
	for i, s := range slices {
		var err error
		if conns[i], err = w.connection(s.Conn); err != nil {
			return nil, err
		}
	}
	defer context.AfterFunc(ctx, func() {
		for _, c := range conns {
			c.interrupt()
		}
	})()
	results := make([]load.SliceResult, len(slices))
	err := w.thread.run(func() (err error) {
		for i, s := range slices {
			if ctx.Err() != nil {
				return errCancelled
			}
			if results[i], err = conns[i].slice(s); err != nil {
				return runError(ctx, conns[i].spec, fmt.Errorf("slice %d: %w", i, err))
			}
		}
		return nil
	})
	if w.sliced += len(slices); w.sliced > mostSlices {
		w.sliced = 0
		runtime.GC()
	}
	return results, err
}

func (w *worker) shut(ctx context.Context, id uint64) (m load.Measurement, err error) {
	w.turn.RLock()
	defer w.turn.RUnlock()
	c, err := w.connection(id)
	if err != nil {
		return m, err
	}
	w.mu.Lock()
	delete(w.conns, id)
	w.mu.Unlock()
	defer w.end()
	defer c.close()
	defer context.AfterFunc(ctx, c.interrupt)()
	if err := c.finish(); err != nil {
		return m, runError(ctx, c.spec, err)
	}
	return c.total, nil
}

// runError adds the traffic that an error ended; it returns errCancelled if ctx ended it.
func runError(ctx context.Context, spec load.Spec, err error) error {
	if ctx.Err() != nil || errors.Is(err, errCancelled) {
		return errCancelled
	}
	return fmt.Errorf("%s to %s: %w", spec.Workload, spec.Target, err)
}
