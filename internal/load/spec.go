// SPDX-License-Identifier: Apache-2.0

package load

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Workload names in a [Spec] and in a result file.
const (
	// TCPStream sends 128 KiB buffers one way as fast as the connection takes
	// them.
	TCPStream = "tcp_stream"
	// TCPRR exchanges a request and a response, one transaction at a time.
	TCPRR = "tcp_rr"
	// TCPCRR connects, exchanges a request and a response, and closes, one transaction at a
	// time.
	TCPCRR = "tcp_crr"
	// UDPRR exchanges a datagram each way, one transaction at a time. After 20 ms without
	// an answer the transaction is lost.
	UDPRR = "udp_rr"
	// UDPStream sends datagrams one way, at a rate or as fast as the client can.
	UDPStream = "udp_stream"
)

// Workloads returns the names of all workloads in a fixed order.
func Workloads() []string { return []string{TCPStream, TCPRR, TCPCRR, UDPStream, UDPRR} }

// Bounds of a [Spec] and of [Agent.Slices].
const (
	// MinDatagram and MaxDatagram are the bounds of [Spec.Size] in bytes. The lower one is
	// what the engine needs, the upper one the limit of an IPv4 packet.
	MinDatagram = 24
	MaxDatagram = 65507
	// DefaultDatagram is the default of [Spec.Size] in bytes. With it a UDP packet has the
	// payload that a TCP segment with time stamps has at an MTU of 1500, in either family.
	// It is also iperf3's default.
	DefaultDatagram = 1448
	// MaxFlows is the greatest [Spec.Flows].
	MaxFlows = 64
	// MaxSlices is the greatest number of slices of one [Agent.Slices].
	MaxSlices = 4096
	// MaxDelay is the greatest [Spec.Delay].
	MaxDelay = 100 * time.Millisecond
	// MaxCongestion is the greatest length of [Spec.Congestion] (TCP_CA_NAME_MAX of linux/tcp.h).
	MaxCongestion = 16
)

// Spec describes a run of a client.
type Spec struct {
	// Workload is one of [Workloads].
	Workload string `json:"workload"`
	// Target is the address that the client connects to: the server's own, or one that
	// is translated to it.
	Target netip.AddrPort `json:"target"`
	// Flows is the number of connections that a stream runs side by side, at most
	// [MaxFlows]; 0 means one. They start together and are measured in one window.
	// Limit, Settle and Rate are of all flows together, Size and Window of each.
	Flows int `json:"flows,omitempty"`
	// Duration is the length of the measured window.
	Duration time.Duration `json:"duration"`
	// Warmup is the time between the first byte and the window. It is not counted.
	Warmup time.Duration `json:"warmup"`
	// Limit, if not zero, replaces the window: the run is counted from the first byte,
	// or from the end of Settle, and ends after exactly this number of bytes (TCP
	// stream), datagrams (UDP stream) or transactions (rr).
	Limit uint64 `json:"limit,omitempty"`
	// Settle is the number of datagrams or transactions before a run with a Limit
	// that are not counted. TCP streams take none.
	Settle uint64 `json:"settle,omitempty"`
	// Request and Response are the numbers of bytes in a request and in a response; 0
	// means 1, or [MinDatagram] in datagrams.
	Request  int `json:"request,omitempty"`
	Response int `json:"response,omitempty"`
	// Delay is the time for which the server of a TCPRR computes before each response. It
	// makes a difference of known size.
	Delay time.Duration `json:"delay,omitempty"`
	// Reset makes the client of a TCPCRR end its connections with a reset, after which no port is in TIME_WAIT: where it
	// cannot set how ports are used again.
	Reset bool `json:"reset,omitempty"`
	// Reverse makes the server send a TCP stream in slices.
	Reverse bool `json:"reverse,omitempty"`
	// Pace, if not 0, is the number of transactions that a TCPRR in slices begins in a
	// second, at equal distances and not before the last one has ended. LoadShare is the
	// same as a share of the connection's own rate without a pause, which the leads of
	// slices show. A latency counts from the time at which the transaction was due.
	Pace      int     `json:"pace,omitempty"`
	LoadShare float64 `json:"load_share,omitempty"`
	// Namespace is the path of the network namespace in which the client's sockets are,
	// such as /run/netns/x; empty means the agent's own.
	Namespace string `json:"namespace,omitempty"`
	// Size is the number of bytes in a datagram, at least [MinDatagram]; 0 means
	// [DefaultDatagram].
	Size int `json:"size,omitempty"`
	// Rate is the offered rate of a UDP stream in bits of datagrams per second, of all
	// flows together, an equal share each; 0 is as fast as the client can.
	Rate uint64 `json:"rate,omitempty"`
	// Window, if not zero, is the number of datagrams that a UDP stream sends before it
	// waits for the server to answer the last of them. If the server's buffer has room
	// for them, none is lost. The client then measures.
	Window uint64 `json:"window,omitempty"`
	// Unconnected makes a UDP client pass the target with each datagram (sendto) instead
	// of connecting its socket once.
	Unconnected bool `json:"unconnected,omitempty"`
	// Exact measures [Measurement.BusyNanos]. It takes root, and a workload that the
	// client measures.
	Exact bool `json:"exact,omitempty"`
	// Congestion is the TCP congestion control of both sockets, by the kernel's name.
	// Empty means "cubic" if the kernel has it, else the system's default.
	Congestion string `json:"congestion,omitempty"`
	// Stall is the time without progress after which a run gives up, also while
	// connecting; 0 means 3 s.
	Stall time.Duration `json:"stall,omitempty"`

	// Standing says that the connection carries load in slices. [Agent.Open] and
	// [Agent.Run] set it.
	Standing bool `json:"-"`
}

// defaultStall is the default of [Spec.Stall].
const defaultStall = 3 * time.Second

// Validate returns an error if the spec makes no sense.
func (s Spec) Validate() error {
	switch {
	case !slices.Contains(Workloads(), s.Workload):
		return fmt.Errorf("load: unknown workload %q: want one of %s", s.Workload, strings.Join(Workloads(), ", "))
	case !s.Target.IsValid() || s.Target.Port() == 0:
		return fmt.Errorf("load: invalid target %q: want an address and a port", s.Target)
	case s.Limit == 0 && s.Duration <= 0 && !s.Standing:
		return fmt.Errorf("load: invalid duration %v: want a positive one", s.Duration)
	case s.Size != 0 && (s.Size < MinDatagram || s.Size > MaxDatagram):
		return fmt.Errorf("load: invalid datagram size %d: want %d to %d bytes", s.Size, MinDatagram, MaxDatagram)
	case s.Settle > 0 && (s.Limit == 0 || s.Workload == TCPStream):
		return fmt.Errorf("load: %s with settle %d needs a limit of datagrams or transactions", s.Workload, s.Settle)
	case s.Flows < 0 || s.Flows > MaxFlows:
		return fmt.Errorf("load: invalid number of flows %d: want 1 to %d", s.Flows, MaxFlows)
	case s.Flows > 1 && !s.IsStream():
		return fmt.Errorf("load: %s has one flow, not %d", s.Workload, s.Flows)
	case s.Limit > 0 && s.Limit < uint64(s.FlowCount()):
		return fmt.Errorf("load: limit %d is too small for %d flows", s.Limit, s.Flows)
	case s.Limit > math.MaxInt64/2:
		return fmt.Errorf("load: limit %d is too large", s.Limit)
	case s.Window > 0 && s.Rate > 0:
		return fmt.Errorf("load: window %d and rate %d exclude each other", s.Window, s.Rate)
	case s.Exact && s.ServerMeasures():
		return fmt.Errorf("load: the client does not measure %s, so it has no exact busy time", s.Workload)
	case s.Warmup < 0 || s.Stall < 0:
		return fmt.Errorf("load: negative warmup %v or stall %v", s.Warmup, s.Stall)
	case s.Reverse && (s.Workload != TCPStream || !s.Standing):
		return fmt.Errorf("load: only a %s in slices can be reversed", TCPStream)
	case s.Paced() && (s.Workload != TCPRR || !s.Standing):
		return fmt.Errorf("load: only a %s in slices has a pace", TCPRR)
	case s.Pace < 0 || s.Pace > MaxPace || !(s.LoadShare >= 0 && s.LoadShare <= 1) || s.Pace > 0 && s.LoadShare > 0:
		return fmt.Errorf("load: invalid pace %d with load share %g: want one of 1 to %d and up to 1", s.Pace, s.LoadShare, MaxPace)
	case s.Delay < 0 || s.Delay > MaxDelay || s.Delay > 0 && s.Workload != TCPRR:
		return fmt.Errorf("load: invalid delay %v of %s: want 0 to %v, and only in %s", s.Delay, s.Workload, MaxDelay, TCPRR)
	case (s.Standing || s.OneSlice()) && (s.Limit > 0 || s.Settle > 0 || s.Window > 0 || s.Exact):
		return fmt.Errorf("load: slices have no limit, settle, window or exact time")
	case s.CheckSizes() != nil:
		return s.CheckSizes()
	case len(s.Congestion) > MaxCongestion:
		return fmt.Errorf("load: congestion control %q has more than %d characters", s.Congestion, MaxCongestion)
	}
	return nil
}

// MaxPace is the greatest [Spec.Pace].
const MaxPace = 10_000_000

// Paced reports whether transactions begin at a pace.
func (s Spec) Paced() bool { return s.Pace != 0 || s.LoadShare != 0 }

// maxMessage is the greatest [Spec.Request] and [Spec.Response] over TCP in bytes.
const maxMessage = 1 << 20

// CheckSizes returns an error if the sizes of requests and responses make no sense.
func (s Spec) CheckSizes() error {
	least, most := 1, maxMessage
	if s.Workload == UDPRR {
		least, most = MinDatagram, MaxDatagram
	}
	for _, size := range []int{s.RequestSize(), s.ResponseSize()} {
		if size < least || size > most {
			return fmt.Errorf("load: invalid size %d of a request or response: want %d to %d bytes", size, least, most)
		}
	}
	return nil
}

// RequestSize returns the size of requests.
func (s Spec) RequestSize() int { return s.message(s.Request) }

// ResponseSize returns the size of responses.
func (s Spec) ResponseSize() int { return s.message(s.Response) }

// message returns a size, or its default if it is 0.
func (s Spec) message(size int) int {
	switch {
	case size != 0:
		return size
	case s.Workload == UDPRR:
		return MinDatagram
	}
	return 1
}

// OneSlice reports whether a run is one slice.
func (s Spec) OneSlice() bool { return s.Workload == UDPRR || s.Workload == TCPCRR }

// IsStream reports whether the workload is one-way, over any number of flows.
func (s Spec) IsStream() bool { return isStream(s.Workload) }

func isStream(workload string) bool { return workload == TCPStream || workload == UDPStream }

// ServerMeasures reports whether the server's clocks bound the window.
func (s Spec) ServerMeasures() bool {
	return !s.Standing && (s.Workload == TCPStream || s.Workload == UDPStream && s.Window == 0)
}

// FlowCount returns the number of flows, at least one.
func (s Spec) FlowCount() int { return max(s.Flows, 1) }

// DatagramSize returns the size of datagrams.
func (s Spec) DatagramSize() int {
	if s.Size == 0 {
		return DefaultDatagram
	}
	return s.Size
}

// StallTime returns the time without progress after which a run gives up.
func (s Spec) StallTime() time.Duration {
	if s.Stall == 0 {
		return defaultStall
	}
	return s.Stall
}
