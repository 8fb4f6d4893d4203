// SPDX-License-Identifier: Apache-2.0

package result

import (
	"cmp"
	"fmt"
	"strings"
)

// Values of [Row.Status].
const (
	StatusOK      = "ok"
	StatusSkipped = "skipped"
	StatusFailed  = "failed"
)

// Values of [Row.Datapath].
const (
	DatapathKernel = "kernel"
	DatapathEBPF   = "ebpf"
)

// Values of [Row.Placement].
const (
	PlacementSameHost = "same-host"
	PlacementTwoHosts = "two-hosts"
)

// Values of [Row.Overlay].
const (
	OverlayNone  = "none"
	OverlayVXLAN = "vxlan"
)

// Values of [Row.Target].
const (
	TargetLoopback      = "loopback"
	TargetHostIP        = "host-ip"
	TargetPodIP         = "pod-ip"
	TargetClusterIP     = "cluster-ip"
	TargetPublishedPort = "published-port"
	// TargetNone is the target of rows without traffic.
	TargetNone = "none"
)

// Values of [Row.Via].
const (
	ViaNone       = "none"
	ViaIPTables   = "iptables"
	ViaNFTables   = "nftables"
	ViaIPVS       = "ipvs"
	ViaEBPFTC     = "ebpf-tc"
	ViaEBPFSocket = "ebpf-socket"
	ViaDocker     = "docker"
)

// Values of [Row.Workload].
const (
	WorkloadTCPStream = "tcp_stream"
	WorkloadUDPStream = "udp_stream"
	WorkloadTCPRR     = "tcp_rr"
	WorkloadTCPCRR    = "tcp_crr"
	WorkloadUDPRR     = "udp_rr"
	// WorkloadCNIAdd and WorkloadCNIDel are calls of a CNI plugin. Their flows are the calls that are started at once.
	WorkloadCNIAdd = "cni_add"
	WorkloadCNIDel = "cni_del"
	// WorkloadFirstPacket and WorkloadFirstPacketP99 are the median and the 99th percentile of the time in which a
	// connection to a service picked at random opens.
	WorkloadFirstPacket    = "first_packet"
	WorkloadFirstPacketP99 = "first_packet_p99"
	// WorkloadServiceProgram writes all services into empty tables, and WorkloadServiceChange waits for the change of
	// one. WorkloadServiceMemory is the kernel's memory with all.
	WorkloadServiceProgram = "service_program"
	WorkloadServiceChange  = "service_change"
	WorkloadServiceMemory  = "service_memory"
	// WorkloadPolicyApply writes the first network policy, and WorkloadPolicyChange changes one rule of a policy. Both
	// end when the policy decides on a connection as written.
	WorkloadPolicyApply  = "policy_apply"
	WorkloadPolicyChange = "policy_change"
)

// Values of [Row.Unit].
const (
	UnitGbit           = "Gbit/s" // 1e9 bits
	UnitTransactions   = "transactions/s"
	UnitPerPacket      = "instructions/packet"
	UnitPerTransaction = "instructions/transaction"
	UnitMilliseconds   = "ms" // for one call
	UnitMicroseconds   = "µs" // for one transaction, or one change of a service or a policy
	// UnitServices is services written per second, UnitBytesPerService memory for each.
	UnitServices        = "services/s"
	UnitBytesPerService = "bytes/service"
)

// MoreIsBetter reports whether higher figures are better in the row's unit.
func (r Row) MoreIsBetter() bool {
	return r.Unit == UnitGbit || r.Unit == UnitTransactions || r.Unit == UnitServices
}

// Key identifies a row of a file.
type Key struct {
	Suite    string `json:"suite"`
	ID       string `json:"id,omitempty"`
	Workload string `json:"workload"`
	Flows    int    `json:"flows"`
	Setup    Setup  `json:"setup,omitzero"`
}

// Key returns the row's key.
func (r Row) Key() Key { return Key{r.Suite, r.ID, r.Workload, max(r.Flows, 1), r.Setup} }

// Title names the key's workload with its flows and its setup.
func (k Key) Title() string {
	title := k.Workload
	if k.Flows > 1 {
		title += fmt.Sprintf(", %d flows", k.Flows)
	}
	if setup := k.Setup.String(); setup != "" {
		title += ", " + setup
	}
	return title
}

// Setup says how a workload is driven, where that is not the usual way. It is part of the identity of a row.
type Setup struct {
	// RequestBytes and ResponseBytes are the sizes of a request and of a response; 0 means the usual ones.
	RequestBytes  int  `json:"request_bytes,omitempty"`
	ResponseBytes int  `json:"response_bytes,omitempty"`
	Reverse       bool `json:"reverse,omitempty"` // says that the server sends the stream
	// Rate is the number of requests a second, sent whether or not responses come in time; 0 means no fixed rate. The
	// figures are latencies from the time at which a request was due.
	Rate      int     `json:"rate,omitempty"`
	LoadShare float64 `json:"load_share,omitempty"` // the rate as a share of the row's own rate without a pause
}

// Paced reports whether requests are sent at a rate.
func (s Setup) Paced() bool { return s.Rate > 0 || s.LoadShare > 0 }

// String describes the setup, such as "reverse" or "1000-byte requests, 50 % load". It is empty for the usual one.
func (s Setup) String() string {
	var parts []string
	if s.RequestBytes > 0 {
		parts = append(parts, fmt.Sprintf("%d-byte requests", s.RequestBytes))
	}
	if s.ResponseBytes > 0 {
		parts = append(parts, fmt.Sprintf("%d-byte responses", s.ResponseBytes))
	}
	if s.Reverse {
		parts = append(parts, "reverse")
	}
	if s.Rate > 0 {
		parts = append(parts, fmt.Sprintf("%d/s", s.Rate))
	}
	if s.LoadShare > 0 {
		parts = append(parts, fmt.Sprintf("%.3g%% load", s.LoadShare*100))
	}
	return strings.Join(parts, ", ")
}

// Row is one path through a network under one workload, measured once per round.
type Row struct {
	Suite string `json:"suite"` // the suite that the row belongs to
	// ID names the path, such as "bridge-call-on/cluster-ip/iptables". Suite, ID, Workload, Flows and Setup together are
	// unique in a file.
	ID string `json:"id"`
	// Label is the display name of the row's connection; empty for the ID, or link, variant and datapath.
	Label string `json:"label,omitempty"`
	// Baseline marks a row that connects no pod to another and serves as a yardstick.
	Baseline  bool   `json:"baseline,omitempty"`
	Repeats   string `json:"repeats,omitempty"` // the ID of the row that this row measures a second time (A/A)
	Link      string `json:"link"`              // a link mode's name, or [LinkHost]
	Variant   string `json:"variant,omitempty"` // names settings of the link mode, such as "call-on"
	BigTCP    bool   `json:"big_tcp,omitempty"` // true if TCP packets of up to 256 KiB may cross the pods' links
	Datapath  string `json:"datapath"`          // [DatapathKernel] or [DatapathEBPF]
	Placement string `json:"placement"`         // [PlacementSameHost] or [PlacementTwoHosts]
	Overlay   string `json:"overlay"`           // [OverlayNone] or [OverlayVXLAN]
	Target    string `json:"target"`            // the kind of the address that the client connects to
	Via       string `json:"via"`               // the mechanism that translates that address to the server's
	// Proxy is the service proxy of the row's network, in the values of Via, used by the row or not; empty for none.
	Proxy    string `json:"proxy,omitempty"`
	Family   string `json:"family,omitempty"` // "ipv4" or "ipv6"
	Workload string `json:"workload"`         // the traffic between client and server, or the calls of a plugin
	Flows    int    `json:"flows,omitempty"`  // the number of parallel connections or calls; 0 means 1
	Setup    Setup  `json:"setup,omitzero"`   // says how the workload was driven, where that is not the usual way
	Engine   string `json:"engine"`           // the load generator: "native", "iperf3", "netperf" or "sockperf"
	// Unit is the unit of samples, median and interval. More is better in [UnitGbit], [UnitTransactions] and
	// [UnitServices], less in all others.
	Unit    string    `json:"unit"`
	Samples []float64 `json:"samples"` // holds one figure per round in the order of the rounds, outliers included
	// Positions has the lab, process and connection of the samples in their order; empty if they were not taken in slices.
	Positions []Position `json:"positions,omitempty"`
	// SliceSeconds is the length of the row's turns, two for each sample; 0 if it takes none.
	SliceSeconds float64 `json:"slice_seconds,omitempty"`
	// SpoiltRounds is the number of rounds in which other load took CPU time, or TCP sent segments again in the kernel.
	// They were repeated and are not among the samples, unless they were more than a quarter.
	SpoiltRounds int `json:"spoilt_rounds,omitempty"`
	// Median is the row's figure: the median of the samples, or where rows took turns the mean of the labs' centers. A
	// row that rested has the figure of the whole run.
	Median float64 `json:"median"`
	// CI95 is the 95 % confidence interval of the figure, nil under six samples.
	CI95 *[2]float64 `json:"ci95"`
	// LatencyUS holds percentiles over all samples; nil if the workload has none.
	LatencyUS *Latency `json:"latency_us,omitempty"`
	// CPUUSPerUnit is the median of the machine's busy CPU time per CPUUnit in microseconds; 0 for counted instructions.
	CPUUSPerUnit float64 `json:"cpu_us_per_unit"`
	// CPUUnit is "MB" (1e6 bytes), "transaction", "packet", "call", "service" or "change".
	CPUUnit string `json:"cpu_unit,omitempty"`
	// CPUSplit has the parts of CPUUSPerUnit, for rows that took turns; nil for others.
	CPUSplit *CPUSplit `json:"cpu_split,omitempty"`
	// BPFNanos is the time of the BPF programs that ran, from a short run of its own after the first rounds.
	BPFNanos []ProgramTime `json:"bpf_ns,omitempty"`
	Evidence Evidence      `json:"evidence"` // shows the path of the traffic
	// Lost is a number over all samples: datagrams of a UDP stream that did not arrive, transactions without an answer
	// ([WorkloadUDPRR]), or connections that stalled for seconds ([WorkloadTCPCRR]).
	Lost uint64 `json:"lost,omitempty"`
	// LostShare is the share of Lost in all. The time of lost transactions and connections counts.
	LostShare float64 `json:"lost_share,omitempty"`
	// OutOfOrder is the number of datagrams of a UDP stream that arrived after a later one.
	OutOfOrder uint64 `json:"out_of_order,omitempty"`
	// Offered is the median rate at which a UDP stream sent, in Unit, or the fixed rate of requests per second. Samples
	// of a UDP stream are received rates.
	Offered float64 `json:"offered,omitempty"`
	// CallsPerSecond is the median rate of parallel calls of a plugin, from the first start to the last end.
	CallsPerSecond float64 `json:"calls_per_second,omitempty"`
	Status         string  `json:"status"`           // [StatusOK], [StatusSkipped] or [StatusFailed]
	Reason         string  `json:"reason,omitempty"` // why the row was skipped or failed
	Note           string  `json:"note,omitempty"`   // a remark for readers of the row
}

// Position is the place of a sample in a run. Samples of one connection are alike, samples of one process less, and
// samples of one lab least. Each is numbered from 0.
type Position struct {
	Lab        int `json:"lab"`
	Process    int `json:"process"`
	Connection int `json:"connection"`
	Round      int `json:"round"`
	// Count is the number of samples taken there, in this round and the next ones; 0 means 1.
	Count int `json:"count,omitempty"`
}

// SamplePositions returns the position of each sample; none if they have none.
func (r Row) SamplePositions() (out []Position) {
	for _, p := range r.Positions {
		count := max(p.Count, 1)
		p.Count = 0
		for range count {
			out = append(out, p)
			p.Round++
		}
	}
	return out
}

// CPUSplit is CPU time in microseconds per CPUUnit: in processes, in the kernel for them, and in softirqs. The kernel
// counts it in ticks, and hardware interrupts apart.
type CPUSplit struct {
	UserUS    float64 `json:"user_us"`
	SystemUS  float64 `json:"system_us"`
	SoftirqUS float64 `json:"softirq_us"`
}

// ProgramTime is the time of a BPF program.
type ProgramTime struct {
	Program     string  `json:"program"`
	RunsPerUnit float64 `json:"runs_per_unit"` // the number of runs per CPUUnit
	NanosPerRun float64 `json:"ns_per_run"`    // the mean time of a run, less the time of an empty program
}

// Latency holds percentiles in microseconds.
type Latency struct {
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
}

// Evidence holds the counters of a row.
type Evidence struct {
	Devices []DeviceCount `json:"devices"` // the packets of each device on the path
	// SoftirqsPerUnit is the number of NET_RX and NET_TX softirqs per CPUUnit.
	SoftirqsPerUnit float64           `json:"softirqs_per_unit"`
	ProgramRuns     map[string]uint64 `json:"program_runs"` // maps an eBPF counter to its increase
	// Rules are the packets that the rules of a network policy counted: of "established" connections, of new ones that
	// were "allowed", and of "denied" ones.
	Rules map[string]uint64 `json:"rules,omitempty"`
	// Hooks are the netfilter hooks with rules on the path, as "place: family table chain (hook)".
	Hooks       []string `json:"hooks,omitempty"`
	Connections int      `json:"connections"` // the number of connection entries that named the service
	// Client and Server are the addresses that both ends saw.
	Client      Addresses    `json:"client,omitzero"`
	Server      Addresses    `json:"server,omitzero"`
	Attachments *Attachments `json:"attachments,omitempty"` // the results of calls of a plugin; nil without calls
	Findings    []string     `json:"findings,omitempty"`    // describe what contradicts the row's path
}

// Attachments are the results of calls of a CNI plugin.
type Attachments struct {
	// Added is the number of ADDs after which the pod's device had the addresses of the result, and they were reserved.
	Added int `json:"added"`
	// Removed is the number of DELs that left no device in the pod or on the host, and no address reserved.
	Removed int `json:"removed"`
	// Reached is the address and the namespace that answered a connection from a pod, as "address (place)".
	Reached string   `json:"reached"`
	Kept    []string `json:"kept,omitempty"` // the devices on the host that the first ADD creates for all pods
}

// Addresses are one end's view of a connection, as "address:port".
type Addresses struct {
	Local string `json:"local"`
	Peer  string `json:"peer"`
}

// DeviceCount is the number of packets that passed a device.
type DeviceCount struct {
	Host string `json:"host"` // the namespace that the device is in, such as "host" or "pod-a"
	Name string `json:"name"` // the device's name
	// RxPackets and TxPackets are increases over the measurement. A packet may be a batch of segments (GSO, GRO).
	RxPackets uint64 `json:"rx_packets"`
	TxPackets uint64 `json:"tx_packets"`
}

// Values of [Step.Direction].
const (
	Request = "request"
	Reply   = "reply"
)

// Trace lists the steps of a row's packets in a TCP transaction of one byte each way. It comes from tracing, apart from
// the samples.
type Trace struct {
	// Suite and ID name the row.
	Suite string `json:"suite"`
	ID    string `json:"id"`
	// Transactions is the number of traced transactions; Alike of them took Steps.
	Transactions int     `json:"transactions"`
	Alike        int     `json:"alike"`
	UntracedNS   float64 `json:"untraced_ns"` // the median transaction without tracing, in nanoseconds
	Steps        []Step  `json:"steps"`       // in the order in which they begin. Their times are nanoseconds.
	// Omitted are classes of steps whose order varied between transactions. Their time is in the steps before them.
	Omitted []string `json:"omitted,omitempty"`
}

// Step is one step of a path. Its time lasts until the next step begins, with the time after an inner step (a hook, a
// BPF program) has returned to it.
type Step struct {
	Direction string `json:"direction"` // "request" or "reply"
	Class     string `json:"class"`     // the kind of the step, such as "devices" or "softirqs"
	Kind      string `json:"kind"`      // what happens, such as "transmit"
	// Place is a place of the lab. A softirq, or a look-up that found nothing, has the place of the step before.
	Place  string `json:"place,omitempty"`
	Device string `json:"device,omitempty"` // the device that a packet is at
	Name   string `json:"name,omitempty"`   // the name of a hook, BPF program, softirq or process
	// Redirects says that a BPF program sent the packet on: the step lasts until the packet is seen again.
	Redirects bool `json:"redirects,omitempty"`
	// Cost is the cost of recording the step, which its figures are less of. A step that would be negative is 0: it is
	// shorter than the cost.
	Cost float64 `json:"cost"`
	// Time is the mean, and Low and High are the quartiles, over the half of the alike transactions whose duration is in
	// the middle.
	Time float64 `json:"time"`
	Low  float64 `json:"low"`
	High float64 `json:"high"`
}

var stepWords = map[string]string{
	"send": "NAME sends", "sent": "NAME has sent", "read": "NAME has read", "wake": "NAME is woken",
	"tcp": "TCP receives from DEVICE", "transmit": "DEVICE transmits", "queue": "DEVICE queues for NET_RX",
	"receive": "DEVICE receives", "route": "route look-up", "hook": "netfilter NAME",
	"program": "BPF program NAME at DEVICE", "raise": "softirq NAME is raised", "softirq": "softirq NAME",
	"softirq end": "softirq NAME ends",
}

// String returns the step in words, without its place.
func (s Step) String() string {
	words := cmp.Or(stepWords[s.Kind], "NAME runs")
	if s.Kind == "program" && s.Redirects {
		words += " redirects"
	}
	return strings.NewReplacer("NAME", s.Name, "DEVICE", s.Device).Replace(words)
}
