// SPDX-License-Identifier: Apache-2.0

package result

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
	// TargetNone is that of rows without traffic.
	TargetNone = "none"
)

// Values of [Row.Via].
const (
	ViaNone       = "none"
	ViaIPTables   = "iptables"
	ViaNFTables   = "nftables"
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
	// WorkloadCNIAdd and WorkloadCNIDel are calls of a CNI plugin. Their flows are
	// the calls that are started at once.
	WorkloadCNIAdd = "cni_add"
	WorkloadCNIDel = "cni_del"
)

// Values of [Row.Unit].
const (
	UnitGbit           = "Gbit/s" // 1e9 bits
	UnitTransactions   = "transactions/s"
	UnitPerPacket      = "instructions/packet"
	UnitPerTransaction = "instructions/transaction"
	UnitMilliseconds   = "ms" // for one call
)

// countedUnits begin with this, and no others do.
const countedUnits = "instructions/"

// Key tells a row from all others of its file.
type Key struct {
	Suite, ID, Workload string
	Flows               int
}

// Key returns the row's key.
func (r Row) Key() Key { return Key{r.Suite, r.ID, r.Workload, max(r.Flows, 1)} }

// Row is one way through a network under one workload, measured once per
// round.
type Row struct {
	// Suite is the suite that the row belongs to.
	Suite string `json:"suite"`
	// ID names the way, such as "bridge-call-on/cluster-ip/iptables". Suite, ID,
	// Workload and Flows together are unique in a file.
	ID string `json:"id"`
	// Link is a link mode's name, or "host".
	Link string `json:"link"`
	// Variant tells apart settings of one link mode, such as "call-on".
	Variant string `json:"variant,omitempty"`
	// Datapath is [DatapathKernel] or [DatapathEBPF].
	Datapath string `json:"datapath"`
	// Placement is [PlacementSameHost] or [PlacementTwoHosts].
	Placement string `json:"placement"`
	// Overlay is [OverlayNone] or [OverlayVXLAN].
	Overlay string `json:"overlay"`
	// Target is the kind of address that the client connects to.
	Target string `json:"target"`
	// Via is what turns that address into the server's.
	Via string `json:"via"`
	// Family is "ipv4" or "ipv6".
	Family string `json:"family,omitempty"`
	// Workload is what client and server do.
	Workload string `json:"workload"`
	// Flows is the number of connections that do so side by side; 0 means 1.
	Flows int `json:"flows,omitempty"`
	// Engine is the load generator: "native", "iperf3".
	Engine string `json:"engine"`
	// Unit is the unit of samples, median and interval: [UnitGbit] or
	// [UnitTransactions], of which more is better, [UnitMilliseconds], of which less
	// is, or in a file of counted instructions [UnitPerPacket] or
	// [UnitPerTransaction], of which less is too.
	Unit string `json:"unit"`
	// Samples holds one figure per round, in the rounds' order; none is left
	// out.
	Samples []float64 `json:"samples"`
	// Median is the median of the samples.
	Median float64 `json:"median"`
	// CI95 is the 95 % confidence interval of the median, nil under six
	// samples.
	CI95 *[2]float64 `json:"ci95"`
	// LatencyUS holds percentiles over all samples, nil where the workload has
	// none.
	LatencyUS *Latency `json:"latency_us,omitempty"`
	// CPUUSPerUnit is the median of the machine's busy CPU time per CPUUnit, in
	// microseconds; 0 where instructions are counted.
	CPUUSPerUnit float64 `json:"cpu_us_per_unit"`
	// CPUUnit is "MB" (1e6 bytes), "transaction", "packet" or "call".
	CPUUnit string `json:"cpu_unit,omitempty"`
	// Evidence shows which path the traffic took.
	Evidence Evidence `json:"evidence"`
	// LostShare is the share of the sent datagrams that did not arrive, over all
	// samples, and OutOfOrder the number that arrived after a later one; both are
	// 0 for what is no stream of datagrams.
	LostShare  float64 `json:"lost_share,omitempty"`
	OutOfOrder uint64  `json:"out_of_order,omitempty"`
	// Offered is the median of what a stream of datagrams sent, in Unit; its samples
	// are what arrived. 0 for what is no stream of datagrams.
	Offered float64 `json:"offered,omitempty"`
	// CallsPerSecond is the median over the rounds of the calls of a plugin that were
	// done in a second, from the start of the first to the end of the last. 0 where
	// there is one at a time.
	CallsPerSecond float64 `json:"calls_per_second,omitempty"`
	// Status is [StatusOK], [StatusSkipped] or [StatusFailed].
	Status string `json:"status"`
	// Reason says why a row was skipped or failed.
	Reason string `json:"reason,omitempty"`
	// Note is a remark that the reader of the row should see.
	Note string `json:"note,omitempty"`
}

// Latency holds percentiles in microseconds.
type Latency struct {
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
}

// Evidence is what was counted while a row ran.
type Evidence struct {
	// Devices are the packets that each device on the way saw.
	Devices []DeviceCount `json:"devices"`
	// SoftirqsPerUnit is the number of NET_RX and NET_TX softirqs per CPUUnit.
	SoftirqsPerUnit float64 `json:"softirqs_per_unit"`
	// ProgramRuns maps an eBPF counter to its increase.
	ProgramRuns map[string]uint64 `json:"program_runs"`
	// Hooks are the netfilter hooks with rules that packets passed, as
	// "place: family table chain (hook)".
	Hooks []string `json:"hooks,omitempty"`
	// Connections is the number of connection entries that named the service.
	Connections int `json:"connections"`
	// Client and Server are the addresses that both ends saw.
	Client Addresses `json:"client,omitzero"`
	Server Addresses `json:"server,omitzero"`
	// Attachments are what calls of a plugin did, nil where there were none.
	Attachments *Attachments `json:"attachments,omitempty"`
	// Findings say in words what does not fit; empty when all does.
	Findings []string `json:"findings,omitempty"`
}

// Attachments are what calls of a CNI plugin did to pods and host.
type Attachments struct {
	// Added is the number of ADDs after which the pod's device had the addresses of
	// the result, and they were reserved.
	Added int `json:"added"`
	// Removed is the number of DELs after which nothing was left: no device in the
	// pod, none on the host, no address reserved.
	Removed int `json:"removed"`
	// Reached is who answered a connection from a pod, as "address (place)".
	Reached string `json:"reached"`
	// Kept are the host's devices that the first ADD makes for all that follow.
	Kept []string `json:"kept,omitempty"`
}

// Addresses are one end's view of a connection, as "address:port".
type Addresses struct {
	Local string `json:"local"`
	Peer  string `json:"peer"`
}

// DeviceCount is the number of packets that passed a device.
type DeviceCount struct {
	// Host is the namespace that the device is in, such as "host" or "pod-a".
	Host string `json:"host"`
	// Name is the device's name.
	Name string `json:"name"`
	// RxPackets and TxPackets are increases over the measurement. A packet may
	// be a batch of segments (GSO, GRO).
	RxPackets uint64 `json:"rx_packets"`
	TxPackets uint64 `json:"tx_packets"`
}
