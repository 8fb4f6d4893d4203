// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"encoding/json"
	"fmt"
	"net/netip"

	hdrhistogram "github.com/HdrHistogram/hdrhistogram-go"
)

// Measurement is the outcome of one run. Everything in it belongs to the
// measured window only.
type Measurement struct {
	// Workload is the workload that ran.
	Workload string `json:"workload"`
	// Flows is how many connections ran side by side. All figures are of all of them
	// together, over one window: a TCP stream's begins with a read of any of them and
	// ends with one, a UDP stream's lasts from the first counted datagram of any of
	// them to the last of any.
	Flows int `json:"flows"`
	// Count is the number of bytes that the server received, or of transactions
	// that the client completed.
	Count uint64 `json:"count"`
	// Units is Count in CPUUnit: megabytes (1e6 bytes) or transactions.
	Units float64 `json:"units"`
	// Seconds is the window's real length by the measuring side's clock; of a stream
	// of datagrams without answers, the longer one of both ends.
	Seconds float64 `json:"seconds"`
	// Rate is Count over Seconds, in Unit.
	Rate float64 `json:"rate"`
	// Unit is "Gbit/s" (1e9 bits) or "transactions/s".
	Unit string `json:"unit"`
	// Sent and Received are the numbers of datagrams that the client sent in the
	// window and that the server received of them, 0 where a workload sends none.
	Sent     uint64 `json:"sent,omitempty"`
	Received uint64 `json:"received,omitempty"`
	// Overflowed is how many the server's sockets dropped for want of room in its
	// buffer, over the whole connection; what else is missing was lost on the way.
	Overflowed uint64 `json:"overflowed,omitempty"`
	// OutOfOrder is how many arrived after one of the same flow that was sent later.
	OutOfOrder uint64 `json:"out_of_order,omitempty"`
	// Offered is what the client sent in the window, in Unit, by its own clock.
	Offered float64 `json:"offered,omitempty"`
	// BusyNanos is the time in the window, in nanoseconds, that the machine's CPUs
	// were not idle, 0 where the spec does not ask for it. On an emulated machine
	// with one CPU, whose clock advances by one nanosecond with each instruction, it
	// is the number of instructions.
	BusyNanos uint64 `json:"busy_nanos,omitempty"`
	// Window is the spec's.
	Window uint64 `json:"window,omitempty"`
	// CPUUnit is what CPU time is divided by: "MB" or "transaction".
	CPUUnit string `json:"cpu_unit"`
	// Histogram holds the latency of each transaction in nanoseconds, 1 ns to
	// 60 s with 3 significant digits; nil where a workload has none.
	Histogram *hdrhistogram.Histogram `json:"-"`
	// Machine is what the whole machine spent, see [MachineTime].
	Machine MachineTime `json:"machine"`
	// ClientCPUSeconds and ServerCPUSeconds are the CPU time of the two agent
	// processes (CLOCK_PROCESS_CPUTIME_ID), each over the window by its own
	// clock. Softirq work done in a process's context is in there, whichever
	// packet it was for.
	ClientCPUSeconds float64 `json:"client_cpu_seconds"`
	ServerCPUSeconds float64 `json:"server_cpu_seconds"`
	// ClientLocal and ClientPeer are the client's socket addresses (getsockname,
	// getpeername); ServerLocal and ServerPeer the server's. Where an address is
	// translated on the way, they differ. They are those of the first flow.
	ClientLocal netip.AddrPort `json:"client_local"`
	ClientPeer  netip.AddrPort `json:"client_peer"`
	ServerLocal netip.AddrPort `json:"server_local"`
	ServerPeer  netip.AddrPort `json:"server_peer"`
	// ClientLocals are the client's own addresses of all flows, the first one first.
	ClientLocals []netip.AddrPort `json:"client_locals,omitempty"`
	// ClientCongestion and ServerCongestion are the congestion controls that the
	// two sockets really used.
	ClientCongestion string `json:"client_congestion"`
	ServerCongestion string `json:"server_congestion"`
	// Retransmits is the number of segments that the client sent again, over the
	// whole of all connections.
	Retransmits uint32 `json:"retransmits"`
}

// Lost is the share of the datagrams sent in the window that did not arrive.
func (m Measurement) Lost() float64 {
	if m.Sent <= m.Received {
		return 0
	}
	return float64(m.Sent-m.Received) / float64(m.Sent)
}

// maxSegment is the most bytes that one packet between devices can stand for
// (GSO).
const maxSegment = 65536

// Packets is the least number of packets that must have passed each device on
// the way, from the client and back to it. A TCP stream's acknowledgements may be
// few.
func (m Measurement) Packets() (forth, back uint64) {
	switch {
	case m.Workload == TCPStream:
		return m.Count / maxSegment, 1
	case m.Workload == UDPStream && m.Window > 0:
		// Each flow may be short of one whole window.
		return m.Received, increase(uint64(max(m.Flows, 1)-1), m.Received/m.Window)
	case m.Workload == UDPStream:
		return m.Received, 1
	}
	return m.Count, m.Count
}

// MachineTime is the difference of two readings of /proc/stat, summed over all
// CPUs, taken by the measuring side at both ends of the window. The kernel
// accounts in ticks of 10 ms, so a second on two CPUs resolves to 0.5 %.
type MachineTime struct {
	// Seconds is the time between the two readings.
	Seconds float64 `json:"seconds"`
	// BusySeconds is the time that CPUs were not idle: Seconds times the CPUs,
	// less idle, iowait and steal. It contains whatever else ran on the machine.
	BusySeconds float64 `json:"busy_seconds"`
	// StealSeconds is the time that the hypervisor gave to others.
	StealSeconds float64 `json:"steal_seconds"`
	// NetRX and NetTX are the network softirqs that were raised, for any
	// namespace.
	NetRX uint64 `json:"net_rx"`
	NetTX uint64 `json:"net_tx"`
}

// CPUMicrosPerUnit is the machine's busy time in microseconds per CPUUnit, 0
// when nothing was transferred.
func (m Measurement) CPUMicrosPerUnit() float64 {
	if m.Units == 0 {
		return 0
	}
	return m.Machine.BusySeconds * 1e6 / m.Units
}

// SoftirqsPerUnit is the number of NET_RX and NET_TX softirqs per CPUUnit, 0
// when nothing was transferred.
func (m Measurement) SoftirqsPerUnit() float64 {
	if m.Units == 0 {
		return 0
	}
	return float64(m.Machine.NetRX+m.Machine.NetTX) / m.Units
}

// bytes fills in what follows from Count and Seconds where Count is bytes.
func (m *Measurement) bytes() {
	m.Unit, m.CPUUnit = "Gbit/s", "MB"
	m.Units = float64(m.Count) / 1e6
	if m.Seconds > 0 {
		m.Rate = float64(m.Count) * 8 / 1e9 / m.Seconds
	}
}

// Served is the server's view of one run.
type Served struct {
	// Workload is what the client asked for.
	Workload string `json:"workload"`
	// Flows is how many connections the figures are of.
	Flows int `json:"flows"`
	// Count is the number of bytes or transactions in the window.
	Count uint64 `json:"count"`
	// Seconds is the window's length by the server's clock, 0 where the client
	// measures.
	Seconds float64 `json:"seconds"`
	// CPUSeconds is the server process's CPU time in the window.
	CPUSeconds float64 `json:"cpu_seconds"`
	// Received, Overflowed and OutOfOrder are as in a [Measurement].
	Received   uint64 `json:"received,omitempty"`
	Overflowed uint64 `json:"overflowed,omitempty"`
	OutOfOrder uint64 `json:"out_of_order,omitempty"`
	// Machine is what the machine spent, where the server is the measuring side.
	Machine MachineTime `json:"machine"`
	// Local and Peer are the server's socket addresses, of one of the flows.
	Local netip.AddrPort `json:"local"`
	Peer  netip.AddrPort `json:"peer"`
	// Congestion is the congestion control that the socket used.
	Congestion string `json:"congestion"`
	// Error says why the connection ended early, empty when it did not.
	Error string `json:"error,omitempty"`
}

// MarshalJSON writes the measurement with its histogram in HdrHistogram's own
// compressed form.
func (m Measurement) MarshalJSON() ([]byte, error) {
	type plain Measurement
	wire := struct {
		plain
		Histogram string `json:"histogram,omitempty"`
	}{plain: plain(m)}
	if m.Histogram != nil {
		encoded, err := m.Histogram.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
		if err != nil {
			return nil, fmt.Errorf("encode histogram: %w", err)
		}
		wire.Histogram = string(encoded)
	}
	return json.Marshal(wire)
}

// UnmarshalJSON reads what MarshalJSON writes.
func (m *Measurement) UnmarshalJSON(data []byte) error {
	type plain Measurement
	var wire struct {
		plain
		Histogram string `json:"histogram"`
	}
	if err := json.Unmarshal(data, &wire); err != nil {
		return err
	}
	*m = Measurement(wire.plain)
	if wire.Histogram != "" {
		histogram, err := hdrhistogram.Decode([]byte(wire.Histogram))
		if err != nil {
			return fmt.Errorf("decode histogram: %w", err)
		}
		m.Histogram = histogram
	}
	return nil
}
