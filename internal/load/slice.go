// SPDX-License-Identifier: Apache-2.0

package load

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"mustang/internal/load/clock"
)

// Conn is a connection of an agent that stands open between slices.
type Conn struct {
	// ID names the connection in slices of this agent.
	ID uint64 `json:"id"`
	// The other fields are as in a [Measurement].
	ClientLocal      netip.AddrPort   `json:"client_local"`
	ClientPeer       netip.AddrPort   `json:"client_peer"`
	ServerLocal      netip.AddrPort   `json:"server_local"`
	ServerPeer       netip.AddrPort   `json:"server_peer"`
	ClientLocals     []netip.AddrPort `json:"client_locals,omitempty"`
	ClientCongestion string           `json:"client_congestion"`
	ServerCongestion string           `json:"server_congestion"`
}

// Slice is a turn of a standing connection: it carries load for Lead, which is not
// counted, and then for Duration. When it ends, nothing of it is in flight.
type Slice struct {
	Conn uint64 `json:"conn"`
	// Lead warms caches and wakes the peer. 0 means a tenth of Duration, a negative
	// lead none.
	Lead     time.Duration `json:"lead,omitempty"`
	Duration time.Duration `json:"duration"`
}

// SliceResult is what was counted in a slice. The fields are as in a [Measurement].
// Machine is of the client's machine: its ticks of 10 ms mean nothing for one slice, but
// their sum over hundreds does.
type SliceResult struct {
	Count       uint64  `json:"count"`
	Seconds     float64 `json:"seconds"`
	Sent        uint64  `json:"sent,omitempty"`
	Received    uint64  `json:"received,omitempty"`
	Overflowed  uint64  `json:"overflowed,omitempty"`
	OutOfOrder  uint64  `json:"out_of_order,omitempty"`
	Retransmits uint32  `json:"retransmits,omitempty"`
	// LatencySeconds is the sum of the latencies of the transactions of a connection with a
	// pace, of which Sent were due and Received completed.
	LatencySeconds float64           `json:"latency_seconds,omitempty"`
	Machine        clock.MachineTime `json:"machine"`
}

// leadPart is the part of a slice's duration that its lead takes by default.
const leadPart = 10

// LeadTime returns the time that is not counted.
func (s Slice) LeadTime() time.Duration {
	if s.Lead == 0 {
		return s.Duration / leadPart
	}
	return max(s.Lead, 0)
}

// Open opens a connection that carries load in slices. Warmup and Duration of the spec
// mean nothing; Limit, Settle, Window and Exact are refused. The connection stands until
// [Agent.Shut].
func (a *Agent) Open(ctx context.Context, spec Spec) (Conn, error) {
	spec.Standing = true
	if err := spec.Validate(); err != nil {
		return Conn{}, err
	}
	r, err := a.carry(ctx, Call{Op: OpOpen, Spec: spec}, 0)
	switch {
	case err != nil:
		return Conn{}, err
	case r.Conn == nil:
		return Conn{}, fmt.Errorf("%s: open: reply without a connection", a)
	}
	return *r.Conn, nil
}

// Slices runs slices back to back on one thread, in the given order, at most 4096. A
// connection whose slice fails is of no more use but to be shut. When ctx ends,
// connections stay usable if the current slice ends within half a second.
func (a *Agent) Slices(ctx context.Context, slices []Slice) ([]SliceResult, error) {
	if len(slices) > MaxSlices {
		return nil, fmt.Errorf("load: %d slices in one call, want at most %d", len(slices), MaxSlices)
	}
	var load time.Duration
	for _, s := range slices {
		if s.Duration <= 0 {
			return nil, fmt.Errorf("load: invalid duration %v of a slice: want a positive one", s.Duration)
		}
		load += s.LeadTime() + s.Duration
	}
	r, err := a.carry(ctx, Call{Op: OpSlices, Slices: slices}, load)
	if err != nil {
		return nil, err
	}
	if len(r.Slices) != len(slices) {
		return nil, fmt.Errorf("%s: %d results of %d slices", a, len(r.Slices), len(slices))
	}
	return r.Slices, nil
}

// Shut closes a connection and returns the measurement of all its slices. The connection
// is gone even if Shut returns an error.
func (a *Agent) Shut(ctx context.Context, conn uint64) (Measurement, error) {
	r, err := a.carry(ctx, Call{Op: OpShut, Conn: conn}, 0)
	if err != nil {
		return Measurement{}, err
	}
	if r.Measurement == nil {
		return Measurement{}, fmt.Errorf("%s: shut: reply without a measurement", a)
	}
	return *r.Measurement, nil
}
