// SPDX-License-Identifier: Apache-2.0

package format

import (
	"cmp"
	"strings"

	"mustang/internal/result"
)

// Connection names the connection of a row's pods, such as "bridge call-off" or
// "veth+eBPF", unless the row has a label. One host, no overlay and IPv4 go
// without saying.
func Connection(r result.Row) string {
	name := r.Label
	if name == "" {
		name = r.Link
		if r.Variant != "" && r.Repeats == "" {
			name += " " + r.Variant
		}
		if r.Datapath == result.DatapathEBPF {
			name += "+eBPF"
		}
	}
	if r.Placement == result.PlacementTwoHosts {
		name += " (two hosts)"
	}
	if r.Overlay == result.OverlayVXLAN {
		name += " (VXLAN)"
	}
	if r.Family == "ipv6" {
		name += " (IPv6)"
	}
	return strings.ReplaceAll(Clean(name), " + eBPF", "+eBPF") // as older files have it
}

// Row names a row by its label, or by its ID.
func Row(r result.Row) string { return Spelt(Clean(cmp.Or(r.Label, r.Repeats, r.ID))) }

// Spelt spells the datapath of an ID as connections do.
func Spelt(id string) string { return strings.ReplaceAll(id, "+ebpf", "+eBPF") }

// Target names what the client connects to.
func Target(target string) string {
	names := map[string]string{
		result.TargetHostIP: "host IP", result.TargetPodIP: "pod IP", result.TargetClusterIP: "cluster IP", result.TargetPublishedPort: "published port",
	}
	return cmp.Or(names[target], Clean(target))
}

// ViaOrder is the order of the kinds of cluster IP.
func ViaOrder() []string {
	return []string{
		result.ViaNone, result.ViaIPTables, result.ViaNFTables, result.ViaIPVS, result.ViaEBPFTC, result.ViaEBPFSocket, result.ViaDocker,
	}
}

// Via names what turns the target's address into the server's.
func Via(via string) string {
	names := map[string]string{result.ViaIPVS: "IPVS", result.ViaEBPFTC: "eBPF packet", result.ViaEBPFSocket: "eBPF socket", result.ViaDocker: "Docker"}
	return cmp.Or(names[via], Clean(via))
}

// ShortUnit shortens a unit for the heading of a column.
func ShortUnit(unit string) string {
	return strings.NewReplacer("instructions/", "instr./", "transactions", "trans.", "transaction", "trans.").Replace(Clean(unit))
}

// Workload names a workload: its title, an explanation, and one of its flows.
type Workload struct{ Name, Title, Explanation, Flow string }

// Workloads lists the workloads in the order of a report.
func Workloads(counted bool) []Workload {
	titles := []Workload{
		{result.WorkloadTCPStream, "Throughput", "one TCP stream", "TCP stream"},
		{result.WorkloadUDPStream, "UDP throughput", "one UDP stream", "UDP stream"},
		{result.WorkloadTCPRR, "Request/response", "one byte each way on an open TCP connection", "connection"},
		{result.WorkloadTCPCRR, "Connect/request/response", "a new TCP connection for each transaction", "client"},
		{result.WorkloadUDPRR, "UDP request/response", "one datagram each way", "client"},
		{result.WorkloadCNIAdd, "ADD", "", "call"},
		{result.WorkloadCNIDel, "DEL", "", "call"},
		{result.WorkloadFirstPacket, "First packet", "the median time in which connections to services picked at random open", "client"},
		{result.WorkloadFirstPacketP99, "First packet, 99th percentile", "the same, of the slowest in a hundred", "client"},
		{result.WorkloadServiceProgram, "Programming", "all services, into empty tables", "writer"},
		{result.WorkloadServiceChange, "Change of a service", "from its begin to the first connection at the new backend", "writer"},
		{result.WorkloadServiceMemory, "Memory", "the kernel's, for a service of four backends", "writer"},
		{result.WorkloadPolicyApply, "Policy", "from the begin of writing it to the first connection that is denied", "writer"},
		{result.WorkloadPolicyChange, "Change of a policy", "from its begin to the first connection that is allowed or denied", "writer"},
	}
	if counted {
		titles[1].Title, titles[1].Explanation = "UDP packets", "small ones, sent one way"
	}
	return titles
}

// ShortVia names a kind of cluster IP in a narrow heading.
func ShortVia(via string) string {
	switch via {
	case result.ViaIPTables:
		return "ipt"
	case result.ViaNFTables:
		return "nft"
	case result.ViaEBPFTC, result.ViaEBPFSocket:
		return "eBPF"
	}
	return Via(via)
}
