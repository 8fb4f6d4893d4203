// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"
	"net/netip"
	"time"
)

// Workload names as they stand in a [Spec] and in a result file.
const (
	// TCPStream sends 128 KiB buffers one way as fast as the connection takes
	// them.
	TCPStream = "tcp_stream"
	// TCPRR exchanges one byte each way, one transaction at a time.
	TCPRR = "tcp_rr"
)

// Spec says what a client is to run.
type Spec struct {
	// Workload is one of [Workloads].
	Workload string `json:"workload"`
	// Target is where the client connects to: the server's own address or one
	// that is translated to it.
	Target netip.AddrPort `json:"target"`
	// Duration is the length of the measured window.
	Duration time.Duration `json:"duration"`
	// Warmup is the time before the window, from the first byte; it is not
	// counted.
	Warmup time.Duration `json:"warmup"`
	// Limit, when not zero, replaces the window: the run counts from the first
	// byte and ends after just so many bytes (stream) or transactions (rr).
	Limit uint64 `json:"limit,omitempty"`
	// Congestion is the TCP congestion control of both sockets, by the kernel's
	// name. Empty means "cubic" where the kernel has it, else the system's own.
	Congestion string `json:"congestion,omitempty"`
	// Stall is how long nothing may move before a run gives up, also while
	// connecting; 0 means 3 s.
	Stall time.Duration `json:"stall,omitempty"`
}

// defaultStall is the [Spec.Stall] of a spec that names none.
const defaultStall = 3 * time.Second

// Validate says what is wrong with the spec, nil when nothing is.
func (s Spec) Validate() error {
	if _, err := lookup(s.Workload); err != nil {
		return err
	}
	switch {
	case !s.Target.IsValid() || s.Target.Port() == 0:
		return fmt.Errorf("traffic: target %q is no address with a port", s.Target)
	case s.Limit == 0 && s.Duration <= 0:
		return fmt.Errorf("traffic: duration %v is not positive", s.Duration)
	case s.Warmup < 0 || s.Stall < 0:
		return fmt.Errorf("traffic: warmup %v or stall %v is negative", s.Warmup, s.Stall)
	case len(s.Congestion) > maxCongestion:
		return fmt.Errorf("traffic: congestion control %q has more than %d characters", s.Congestion, maxCongestion)
	}
	return nil
}

// stall returns the spec's stall limit with the default filled in.
func (s Spec) stall() time.Duration {
	if s.Stall == 0 {
		return defaultStall
	}
	return s.Stall
}
