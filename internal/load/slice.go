// SPDX-License-Identifier: Apache-2.0

package load

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	hdrhistogram "github.com/HdrHistogram/hdrhistogram-go"
)

// Open opens a connection for slices, until [Agent.Shut]. Warmup and Duration of the spec mean nothing.
func (a *Agent) Open(ctx context.Context, spec Spec) (Conn, error) {
	if err := spec.Validate(); err != nil {
		return Conn{}, err
	}
	r, err := a.carry(ctx, Call{Op: OpOpen, Spec: spec}, 0)
	return r.Conn, err
}

// switches is the time of ten changes between the ends of a slice. It counts ten times in the time-out: on a CPU with
// thirty busy programs each change takes some 20 ms.
const switches = 20 * time.Millisecond

// Slices runs slices back to back on one thread, at most 4096. A connection whose slice fails can only be shut. When
// ctx ends, Slices returns at once, and the agent finishes the slices before its next command.
func (a *Agent) Slices(ctx context.Context, slices []Slice) ([]SliceResult, error) {
	if len(slices) > MaxSlices {
		return nil, fmt.Errorf("load: %d slices in one call, want at most %d", len(slices), MaxSlices)
	}
	var load time.Duration
	for _, s := range slices {
		if s.Duration <= 0 {
			return nil, fmt.Errorf("load: invalid duration %v of a slice: want a positive one", s.Duration)
		}
		load += s.LeadTime() + s.Duration + switches
	}
	r, err := a.carry(ctx, Call{Op: OpSlices, Slices: slices}, load)
	if err == nil && len(r.Slices) != len(slices) {
		err = fmt.Errorf("%s: %d results of %d slices", a, len(r.Slices), len(slices))
	}
	return r.Slices, err
}

// Shut closes a connection and returns the measurement of all its slices. The connection is gone even if it fails.
func (a *Agent) Shut(ctx context.Context, conn uint64) (Measurement, error) {
	r, err := a.carry(ctx, Call{Op: OpShut, Conn: conn}, 0)
	m := r.Measurement
	if len(r.Histogram) > 0 {
		if m.Histogram, err = hdrhistogram.Decode(r.Histogram); err != nil {
			err = fmt.Errorf("%s: decode histogram: %w", a, err)
		}
	}
	return m, err
}

// Run opens a connection, runs one slice of the spec's warm-up and duration, or of its limit, and shuts the connection.
func (a *Agent) Run(ctx context.Context, spec Spec) (Measurement, error) {
	if spec.Limit == 0 && spec.Duration == 0 {
		return Measurement{}, errors.New("load: a run needs a duration or a limit")
	}
	c, err := a.Open(ctx, spec)
	if err != nil {
		return Measurement{}, err
	}
	if spec.Limit > 0 { // however long it takes
		_, err = a.call(ctx, Call{Op: OpSlices, Slices: []Slice{{Conn: c.ID, Lead: -1}}}, 0)
	} else {
		_, err = a.Slices(ctx, []Slice{{Conn: c.ID, Lead: cmp.Or(spec.Warmup, -1), Duration: spec.Duration}})
	}
	if ctx.Err() != nil { // the run goes on
		return Measurement{}, err
	}
	m, shutErr := a.Shut(ctx, c.ID)
	return m, cmp.Or(err, shutErr)
}
