// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"
	"math"
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
	// UDPStream sends datagrams one way, at a rate or as fast as the client can.
	UDPStream = "udp_stream"
)

// DefaultDatagram is the [Spec.Size] of a spec that names none, in bytes: it
// fills a packet of 1500 bytes in either family as far as one of TCP with time
// stamps would, which is also what iperf3 sends.
const DefaultDatagram = 1448

// MaxFlows is the greatest [Spec.Flows].
const MaxFlows = 64

// Spec says what a client is to run.
type Spec struct {
	// Workload is one of [Workloads].
	Workload string `json:"workload"`
	// Target is where the client connects to: the server's own address or one
	// that is translated to it.
	Target netip.AddrPort `json:"target"`
	// Flows is how many connections a stream runs side by side, at most
	// [MaxFlows]; 0 means one. They begin together and are measured in one window.
	// Limit, Settle and Rate are of all flows together, Size and Window of each.
	Flows int `json:"flows,omitempty"`
	// Duration is the length of the measured window.
	Duration time.Duration `json:"duration"`
	// Warmup is the time before the window, from the first byte; it is not
	// counted.
	Warmup time.Duration `json:"warmup"`
	// Limit, when not zero, replaces the window: the run counts from the first
	// byte, or the end of Settle, and ends after just so many bytes (TCP stream),
	// datagrams (UDP stream) or transactions (rr).
	Limit uint64 `json:"limit,omitempty"`
	// Settle is the number of datagrams or transactions before a run with a Limit
	// that are not counted; TCP streams take none.
	Settle uint64 `json:"settle,omitempty"`
	// Size is the number of bytes in a datagram, at least [MinDatagram]; 0 means
	// [DefaultDatagram].
	Size int `json:"size,omitempty"`
	// Rate is what a UDP stream offers, in bits of datagrams per second and of all
	// flows together, each with the same part; 0 is as fast as the client can.
	Rate uint64 `json:"rate,omitempty"`
	// Window, when not zero, is how many datagrams a UDP stream sends before it
	// waits for the server to answer the last of them: with few enough for the
	// server's buffer none is lost. Then the client measures.
	Window uint64 `json:"window,omitempty"`
	// Unconnected makes a UDP client name the target with each datagram in the
	// place of connecting its socket once.
	Unconnected bool `json:"unconnected,omitempty"`
	// Exact measures [Measurement.BusyNanos]. It takes root, and a workload that
	// the client measures.
	Exact bool `json:"exact,omitempty"`
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
	case s.Size != 0 && (s.Size < MinDatagram || s.Size > maxDatagram):
		return fmt.Errorf("traffic: datagrams of %d bytes: want %d to %d", s.Size, MinDatagram, maxDatagram)
	case s.Settle > 0 && (s.Limit == 0 || s.Workload == TCPStream):
		return fmt.Errorf("traffic: %s with a settle of %d takes a limit of packets or transactions", s.Workload, s.Settle)
	case s.Flows < 0 || s.Flows > MaxFlows:
		return fmt.Errorf("traffic: %d flows: want 1 to %d", s.Flows, MaxFlows)
	case s.Flows > 1 && s.Workload == TCPRR:
		return fmt.Errorf("traffic: %s runs over one flow, not %d", s.Workload, s.Flows)
	case s.Limit > 0 && s.Limit < uint64(s.flows()):
		return fmt.Errorf("traffic: a limit of %d is too little for %d flows", s.Limit, s.Flows)
	case s.Limit > math.MaxInt64/2:
		return fmt.Errorf("traffic: a limit of %d is too much", s.Limit)
	case s.Window > 0 && s.Rate > 0:
		return fmt.Errorf("traffic: window %d and rate %d exclude each other", s.Window, s.Rate)
	case s.Exact && (s.Workload == TCPStream || s.Workload == UDPStream && s.Window == 0):
		return fmt.Errorf("traffic: the client does not measure %s, so it has no exact busy time", s.Workload)
	case s.Warmup < 0 || s.Stall < 0:
		return fmt.Errorf("traffic: warmup %v or stall %v is negative", s.Warmup, s.Stall)
	case len(s.Congestion) > maxCongestion:
		return fmt.Errorf("traffic: congestion control %q has more than %d characters", s.Congestion, maxCongestion)
	}
	return nil
}

// flows returns the spec's number of flows with the default filled in.
func (s Spec) flows() int { return max(s.Flows, 1) }

// size returns the spec's size of datagrams with the default filled in.
func (s Spec) size() int {
	if s.Size == 0 {
		return DefaultDatagram
	}
	return s.Size
}

// stall returns the spec's stall limit with the default filled in.
func (s Spec) stall() time.Duration {
	if s.Stall == 0 {
		return defaultStall
	}
	return s.Stall
}
