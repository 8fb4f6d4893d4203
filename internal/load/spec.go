// SPDX-License-Identifier: Apache-2.0

// Package load is the native load engine, which measures the traffic between two processes.
//
// Client and server are separate processes, so that each can run in a network namespace, on a CPU or on a machine of
// its own. StartAgent starts one: a program, usually the caller's own, whose main calls worker.Main. AgentOptions.Shell
// starts it on another machine. Parent and agent exchange JSON lines over the agent's standard input and output. An
// agent ends when its input ends, so it never outlives its parent.
//
// Agent.Open opens a connection, and Agent.Slices gives connections turns, back to back on one thread. A slice has a
// lead, which is not counted, and a time or a number of transactions, which is. When it ends, nothing of it is in
// flight. Agent.Run is one slice of a connection of its own. Package worker describes how load is carried and measured.
package load

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Workload names in a [Spec] and in a result file.
const (
	// TCPStream sends 128 KiB buffers one way as fast as the connection takes them.
	TCPStream = "tcp_stream"
	// TCPRR exchanges a request and a response, one transaction at a time.
	TCPRR = "tcp_rr"
	// TCPCRR connects, exchanges a request and a response, and closes, one transaction at a time.
	TCPCRR = "tcp_crr"
	// UDPRR exchanges a datagram each way, one transaction at a time, which is lost after 20 ms without an answer.
	UDPRR = "udp_rr"
	// UDPStream sends datagrams one way, at a rate or as fast as the client can.
	UDPStream = "udp_stream"
)

// Workloads returns the names of all workloads in a fixed order.
func Workloads() []string { return []string{TCPStream, TCPRR, TCPCRR, UDPStream, UDPRR} }

// Bounds of a [Spec] and of [Agent.Slices].
const (
	// MinDatagram and MaxDatagram bound [Spec.Size] in bytes: what the engine needs, and the limit of an IPv4 packet.
	MinDatagram = 24
	MaxDatagram = 65507
	// DefaultDatagram is the default of [Spec.Size] in bytes, as of iperf3. A UDP packet then has the payload of a TCP
	// segment with time stamps at an MTU of 1500.
	DefaultDatagram = 1448
	// MaxFlows, MaxSlices, MaxDelay and MaxPace are the greatest [Spec.Flows], number of slices of one [Agent.Slices],
	// [Spec.Delay] and [Spec.Pace].
	MaxFlows  = 64
	MaxSlices = 4096
	MaxDelay  = 100 * time.Millisecond
	MaxPace   = 10_000_000

	maxMessage   = 1 << 20         // bytes of Request and Response over TCP
	defaultStall = 3 * time.Second // of [Spec.Stall]
)

// Spec describes the load of a connection.
type Spec struct {
	Workload string `json:"workload"` // one of [Workloads]
	// Target is the address that the client connects to: the server's own, or one that is translated to it.
	Target netip.AddrPort `json:"target"`
	// Flows is the number of sockets that a stream runs side by side; 0 means one. They start together and are measured
	// in one window. Rate is of all flows together, Size and Window of each.
	Flows    int           `json:"flows,omitempty"`
	Warmup   time.Duration `json:"warmup,omitempty"`   // the lead of [Agent.Run]
	Duration time.Duration `json:"duration,omitempty"` // of [Agent.Run]
	// Limit, if not zero, is the number of datagrams or transactions of each slice, which then lacks a duration. It
	// applies to a TCPRR, or to a UDP stream of one flow. Settle is how many precede them uncounted.
	Limit    uint64        `json:"limit,omitempty"`
	Settle   uint64        `json:"settle,omitempty"`
	Request  int           `json:"request,omitempty"`  // bytes; 0 means 1, or [MinDatagram] in datagrams
	Response int           `json:"response,omitempty"` // bytes; 0 means 1, or [MinDatagram] in datagrams
	Delay    time.Duration `json:"delay,omitempty"`    // how long the server of a TCPRR computes before each response
	// Reset makes the client of a TCPCRR end its connections with a reset, which leaves no port in TIME_WAIT. Clients
	// that cannot set how ports are reused need it.
	Reset   bool `json:"reset,omitempty"`
	Reverse bool `json:"reverse,omitempty"` // makes the server send a TCP stream
	// Pace, if not 0, is the number of transactions that a TCPRR begins in a second, at equal distances. None begins
	// before the previous one ends. LoadShare is the same as a share of the connection's own rate, which the leads of
	// slices show. A latency counts from the time at which the transaction was due.
	Pace      int     `json:"pace,omitempty"`
	LoadShare float64 `json:"load_share,omitempty"`
	// Namespace is the path of the network namespace of the client's sockets, such as /run/netns/x; empty means the
	// agent's own. There net.ipv4.tcp_slow_start_after_idle is to be 0, or each slice starts with a small window.
	// A TCPCRR also needs tcp_tw_reuse = 1, a wide ip_local_port_range, and where connections are tracked
	// net.netfilter.nf_conntrack_tcp_timeout_time_wait = 1: TIME_WAIT else holds all ports after ten thousand connections.
	Namespace string `json:"namespace,omitempty"`
	Size      int    `json:"size,omitempty"` // bytes in a datagram; 0 means [DefaultDatagram]
	// Rate is the offered rate of a UDP stream in bits of datagrams per second, shared by its flows; 0: no limit.
	Rate   uint64 `json:"rate,omitempty"`
	Window uint64 `json:"window,omitempty"` // datagrams of a UDP stream between two answers; 0 is without answers
	Exact  bool   `json:"exact,omitempty"`  // measures [Measurement.BusyNanos], which takes root
	// Stall is the time without progress after which a connection gives up, also while connecting; 0 means 3 s.
	Stall time.Duration `json:"stall,omitempty"`
}

// Validate returns an error if the spec makes no sense.
func (s Spec) Validate() error {
	if !s.Target.IsValid() || s.Target.Port() == 0 {
		return fmt.Errorf("load: invalid target %q: want an address and a port", s.Target)
	}
	return s.CheckTraffic()
}

// CheckTraffic is Validate without the target.
func (s Spec) CheckTraffic() error {
	switch flows := s.FlowCount(); {
	case !slices.Contains(Workloads(), s.Workload):
		return fmt.Errorf("load: unknown workload %q: want one of %s", s.Workload, strings.Join(Workloads(), ", "))
	case s.Size != 0 && (s.Size < MinDatagram || s.Size > MaxDatagram):
		return fmt.Errorf("load: invalid datagram size %d: want %d to %d bytes", s.Size, MinDatagram, MaxDatagram)
	case s.Flows < 0 || s.Flows > MaxFlows:
		return fmt.Errorf("load: invalid number of flows %d: want 1 to %d", s.Flows, MaxFlows)
	case flows > 1 && !s.IsStream():
		return fmt.Errorf("load: %s has one flow, not %d", s.Workload, s.Flows)
	case s.Settle > 0 && s.Limit == 0:
		return fmt.Errorf("load: settle %d needs a limit", s.Settle)
	case s.Limit > 0 && (s.Workload != TCPRR && s.Workload != UDPStream || flows > 1 || s.Rate > 0 || s.Paced()):
		return fmt.Errorf("load: only a %s and a %s have a limit, over one flow and without a rate", TCPRR, UDPStream)
	case s.Window > 0 && (s.Rate > 0 || flows > 1):
		return fmt.Errorf("load: window %d with a rate or with several flows", s.Window)
	case s.Warmup < 0 || s.Duration < 0 || s.Stall < 0:
		return fmt.Errorf("load: negative warmup %v, duration %v or stall %v", s.Warmup, s.Duration, s.Stall)
	case s.Reverse && s.Workload != TCPStream:
		return fmt.Errorf("load: only a %s can be reversed", TCPStream)
	case s.Paced() && s.Workload != TCPRR:
		return fmt.Errorf("load: only a %s has a pace", TCPRR)
	case s.Pace < 0 || s.Pace > MaxPace || !(s.LoadShare >= 0 && s.LoadShare <= 1) || s.Pace > 0 && s.LoadShare > 0:
		return fmt.Errorf("load: invalid pace %d with load share %g: want one of 1 to %d and up to 1", s.Pace,
			s.LoadShare, MaxPace)
	case s.Delay < 0 || s.Delay > MaxDelay || s.Delay > 0 && s.Workload != TCPRR:
		return fmt.Errorf("load: invalid delay %v of %s: want 0 to %v, and only in %s", s.Delay, s.Workload, MaxDelay, TCPRR)
	}
	return s.CheckSizes()
}

// Paced reports whether transactions begin at a pace.
func (s Spec) Paced() bool { return s.Pace != 0 || s.LoadShare != 0 }

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

func (s Spec) message(size int) int {
	if size == 0 && s.Workload == UDPRR {
		return MinDatagram
	}
	return cmp.Or(size, 1)
}

// IsStream reports whether the workload is one-way, over any number of flows.
func (s Spec) IsStream() bool { return s.Workload == TCPStream || s.Workload == UDPStream }

// FlowCount returns the number of flows, at least one.
func (s Spec) FlowCount() int { return max(s.Flows, 1) }

// DatagramSize returns the size of datagrams.
func (s Spec) DatagramSize() int { return cmp.Or(s.Size, DefaultDatagram) }

// StallTime returns the time without progress after which a connection gives up.
func (s Spec) StallTime() time.Duration { return cmp.Or(s.Stall, defaultStall) }

// Sockaddr converts an address for system calls.
func Sockaddr(ap netip.AddrPort) unix.Sockaddr {
	if addr := ap.Addr().Unmap(); addr.Is4() {
		return &unix.SockaddrInet4{Addr: addr.As4(), Port: int(ap.Port())}
	}
	return &unix.SockaddrInet6{Addr: ap.Addr().As16(), Port: int(ap.Port())}
}

// AddrPort converts an address of a system call, unmapped.
func AddrPort(sa unix.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr).Unmap(), uint16(sa.Port))
	}
	return netip.AddrPort{}
}
