// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"
)

// Limits bound what a peer may ask a server for. In a zero value each is that of
// [DefaultLimits].
type Limits struct {
	// Duration, Warmup and Stall are the greatest of a [Spec]. A run that has a limit
	// in the place of a duration is ended after the greatest Duration.
	Duration time.Duration `json:"duration"`
	Warmup   time.Duration `json:"warmup"`
	Stall    time.Duration `json:"stall"`
	// Limit is the greatest Limit, and Settle, of a spec.
	Limit uint64 `json:"limit"`
	// Window is the greatest Window of a spec.
	Window uint64 `json:"window"`
	// Flows is the greatest number of flows.
	Flows int `json:"flows"`
	// Idle is how long a peer may say nothing on its control connection, and Session
	// how long it may have it.
	Idle    time.Duration `json:"idle"`
	Session time.Duration `json:"session"`
}

// DefaultLimits are wide enough for every suite.
func DefaultLimits() Limits {
	return Limits{
		Duration: time.Minute, Warmup: 10 * time.Second, Stall: 10 * time.Second,
		Limit: 1 << 40, Window: 1 << 20, Flows: MaxFlows,
		Idle: time.Minute, Session: 4 * time.Hour,
	}
}

// filled returns the limits with defaults for what is 0.
func (l Limits) filled() Limits {
	d := DefaultLimits()
	return Limits{
		Duration: either(l.Duration, d.Duration), Warmup: either(l.Warmup, d.Warmup), Stall: either(l.Stall, d.Stall),
		Limit: either(l.Limit, d.Limit), Window: either(l.Window, d.Window), Flows: either(l.Flows, d.Flows),
		Idle: either(l.Idle, d.Idle), Session: either(l.Session, d.Session),
	}
}

// either returns the first value unless it is zero.
func either[T comparable](value, otherwise T) T {
	var zero T
	if value == zero {
		return otherwise
	}
	return value
}

// Check says in which way a spec is beyond the limits, nil if it is not.
func (l Limits) Check(s Spec) error {
	refuse := func(name string, got, most any) error {
		return fmt.Errorf("%s %v is beyond the server's limit of %v", name, got, most)
	}
	switch {
	case s.Duration > l.Duration:
		return refuse("duration", s.Duration, l.Duration)
	case s.Warmup > l.Warmup:
		return refuse("warm-up", s.Warmup, l.Warmup)
	case s.stall() > l.Stall:
		return refuse("stall", s.stall(), l.Stall)
	case s.Limit > l.Limit:
		return refuse("limit", s.Limit, l.Limit)
	case s.Settle > l.Limit:
		return refuse("settle", s.Settle, l.Limit)
	case s.Window > l.Window:
		return refuse("window", s.Window, l.Window)
	case s.flows() > l.Flows:
		return refuse("number of flows", s.flows(), l.Flows)
	}
	return nil
}

// lifetime is how long a connection of a run may last.
func (l Limits) lifetime(s Spec) time.Duration {
	duration := s.Duration
	if s.Limit > 0 {
		duration = l.Duration
	}
	return s.Warmup + duration + 2*s.stall() + headerTimeout
}

// spareConnections is how many data connections a peer may have open beside those
// of a run and of the last one, which are about to end.
const spareConnections = 8

// guard says whom a listening agent serves, and what; nil means all and anything.
type guard struct {
	Peer   netip.Addr `json:"peer"`
	Limits Limits     `json:"limits"`
}

// admits tells whether the guard lets an address in.
func (g *guard) admits(from netip.Addr) bool { return g == nil || from.Unmap() == g.Peer }

// most is how many connections may be open at once, 0 for any number.
func (g *guard) most() int {
	if g == nil {
		return 0
	}
	return 2*g.Limits.Flows + spareConnections
}

// bound limits the time of a connection.
func (g *guard) bound(ctx context.Context, s Spec) (context.Context, context.CancelFunc) {
	if g == nil {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, g.Limits.lifetime(s))
}

// check refuses a run that the guard does not allow. A congestion control has to
// be one that the kernel has: others would be loaded as modules.
func (g *guard) check(s Spec) error {
	if g == nil {
		return nil
	}
	if err := g.Limits.Check(s); err != nil || s.Congestion == "" {
		return err
	}
	data, err := os.ReadFile("/proc/sys/net/ipv4/tcp_available_congestion_control")
	if err != nil {
		return fmt.Errorf("list congestion controls: %w", err)
	}
	if !slices.Contains(strings.Fields(string(data)), s.Congestion) {
		return fmt.Errorf("the server has no congestion control %q", s.Congestion)
	}
	return nil
}
