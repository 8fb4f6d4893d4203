// SPDX-License-Identifier: Apache-2.0

package load

import (
	"net/netip"

	hdrhistogram "github.com/HdrHistogram/hdrhistogram-go"

	"mustang/internal/load/clock"
)

// Measurement is the outcome of all slices of a connection. All figures are of all flows together, over one window.
type Measurement struct {
	Workload string  `json:"workload"`
	Flows    int     `json:"flows"`
	Count    uint64  `json:"count"`    // bytes that the receiver got, or transactions that the client completed
	Units    float64 `json:"units"`    // Count in CPUUnit
	Seconds  float64 `json:"seconds"`  // of all slices by the client's clock; of a UDP stream the longer window
	Rate     float64 `json:"rate"`     // Count over Seconds, in Unit
	Unit     string  `json:"unit"`     // "Gbit/s" (1e9 bits) or "transactions/s"
	CPUUnit  string  `json:"cpu_unit"` // the unit that CPU time is divided by: "MB" (1e6 bytes) or "transaction"
	// Sent and Received are the numbers of datagrams that the client sent and that the server received of them. Of a
	// [TCPCRR] and a [UDPRR] they are the numbers of transactions that were begun and completed. 0 for other workloads.
	Sent       uint64  `json:"sent,omitempty"`
	Received   uint64  `json:"received,omitempty"`
	Reverse    bool    `json:"reverse,omitempty"`      // copied from the spec
	Window     uint64  `json:"window,omitempty"`       // copied from the spec
	OutOfOrder uint64  `json:"out_of_order,omitempty"` // datagrams that arrived after a later one of their flow
	Offered    float64 `json:"offered,omitempty"`      // the rate that the client sent a UDP stream at, in Unit
	BusyNanos  uint64  `json:"busy_nanos,omitempty"`   // see [clock.Machine]; 0 unless [Spec.Exact] is set
	// Histogram holds the latency of each transaction in nanoseconds, 1 ns to 60 s with 3 significant digits; nil for
	// workloads without transactions.
	Histogram *hdrhistogram.Histogram `json:"-"`
	Machine   clock.MachineTime       `json:"machine"` // of the client's machine
	// ClientLocal and ClientPeer are the client's socket addresses, ServerLocal and ServerPeer the server's. They differ
	// if an address is translated on the way. They belong to the first flow, or to the last connection of a [TCPCRR].
	ClientLocal      netip.AddrPort `json:"client_local"`
	ClientPeer       netip.AddrPort `json:"client_peer"`
	ServerLocal      netip.AddrPort `json:"server_local"`
	ServerPeer       netip.AddrPort `json:"server_peer"`
	ClientCongestion string         `json:"client_congestion"` // the congestion control of the client's socket
	Retransmits      uint32         `json:"retransmits"`       // segments that the client sent again
}

const maxSegment = 65536 // the largest number of bytes in one packet between devices (GSO)

// Packets returns the smallest number of packets that must have passed each device on the path, from the client and to
// it. The acknowledgements of a TCP stream may be few.
func (m Measurement) Packets() (sent, received uint64) {
	switch {
	case m.Workload == TCPStream && m.Reverse:
		return 1, m.Count / maxSegment
	case m.Workload == TCPStream:
		return m.Count / maxSegment, 1
	case m.Workload == UDPStream && m.Window > 0:
		return m.Received, m.Received / m.Window
	case m.Workload == UDPStream:
		return m.Received, 1
	}
	return m.Count, m.Count
}

// CPUMicrosPerUnit returns the machine's busy time in microseconds per CPUUnit, 0 when nothing was transferred.
func (m Measurement) CPUMicrosPerUnit() float64 { return m.perUnit(m.Machine.BusySeconds * 1e6) }

// SoftirqsPerUnit returns the number of NET_RX and NET_TX softirqs per CPUUnit, 0 when nothing was transferred.
func (m Measurement) SoftirqsPerUnit() float64 {
	return m.perUnit(float64(m.Machine.NetRX + m.Machine.NetTX))
}

func (m Measurement) perUnit(x float64) float64 {
	if m.Units == 0 {
		return 0
	}
	return x / m.Units
}

// SetRate sets the fields that follow from Workload, Count and Seconds.
func (m *Measurement) SetRate() {
	m.Unit, m.CPUUnit = "transactions/s", "transaction"
	m.Units, m.Rate = float64(m.Count), 0
	amount := m.Units
	if (Spec{Workload: m.Workload}).IsStream() {
		m.Unit, m.CPUUnit = "Gbit/s", "MB"
		m.Units, amount = amount/1e6, amount*8/1e9
	}
	if m.Seconds > 0 {
		m.Rate = amount / m.Seconds
	}
}

// AddSlice adds the figures of a slice.
func (m *Measurement) AddSlice(r SliceResult) {
	m.Count += r.Count
	m.Seconds += r.Seconds
	m.Sent += r.Sent
	m.Received += r.Received
	m.OutOfOrder += r.OutOfOrder
	m.Retransmits += r.Retransmits
	m.Machine.Add(r.Machine)
}

// Served is the server's view of one flow.
type Served struct {
	Count      uint64         `json:"count"` // bytes or transactions that are counted
	Local      netip.AddrPort `json:"local"`
	Peer       netip.AddrPort `json:"peer"`
	Congestion string         `json:"congestion,omitempty"` // of a TCP socket
	Slot       byte           `json:"slot,omitempty"`       // the number of a [TCPCRR] at its server
}

// SliceResult holds the counts of a slice. The fields are as in a [Measurement]. Machine counts ticks of 10 ms: useless
// for one slice, but not as a sum over hundreds.
type SliceResult struct {
	Count       uint64  `json:"count"`
	Seconds     float64 `json:"seconds"`
	Sent        uint64  `json:"sent,omitempty"`
	Received    uint64  `json:"received,omitempty"`
	OutOfOrder  uint64  `json:"out_of_order,omitempty"`
	Retransmits uint32  `json:"retransmits,omitempty"`
	// LatencySeconds is the sum of the latencies of a paced connection's transactions: Sent were due, Received completed.
	LatencySeconds float64           `json:"latency_seconds,omitempty"`
	Machine        clock.MachineTime `json:"machine"`
}

// AddFlow adds what another flow counted in the same slice.
func (r *SliceResult) AddFlow(o SliceResult) {
	r.Count += o.Count
	r.Sent += o.Sent
	r.Received += o.Received
	r.OutOfOrder += o.OutOfOrder
	r.LatencySeconds += o.LatencySeconds
	r.Seconds = max(r.Seconds, o.Seconds)
}
