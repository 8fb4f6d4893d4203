// SPDX-License-Identifier: Apache-2.0

package report

import (
	"slices"
	"strings"

	"mustang/internal/result"
)

// connectionName names a connection, such as "bridge call-off". One host, no overlay and IPv4 go without saying.
func connectionName(r result.Row) string {
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
	return strings.ReplaceAll(name, " + eBPF", "+eBPF") // as older files have it
}

func spelt(id string) string { return strings.ReplaceAll(id, "+ebpf", "+eBPF") }

// targetNames name the client's target, where the file's name does not suffice.
var targetNames = map[string]string{
	result.TargetHostIP: "host IP", result.TargetPodIP: "pod IP", result.TargetClusterIP: "cluster IP",
	result.TargetPublishedPort: "published port",
}

// vias are the kinds of cluster IP in their order, with their names in tables and in narrow headings.
var vias = []struct{ via, name, short string }{
	{result.ViaNone, "none", "none"}, {result.ViaIPTables, "iptables", "ipt"}, {result.ViaNFTables, "nftables", "nft"},
	{result.ViaIPVS, "IPVS", "IPVS"}, {result.ViaEBPFTC, "eBPF per packet", "eBPF"},
	{result.ViaEBPFSocket, "eBPF per socket", "eBPF"}, {result.ViaDocker, "Docker", "Docker"},
}

// viaIndex is the index of a kind of cluster IP, which Validate has checked; an empty one counts as ViaNone.
func viaIndex(via string) int {
	return max(0, slices.IndexFunc(vias, func(v struct{ via, name, short string }) bool { return v.via == via }))
}

func viaName(via string) string {
	if via == "" {
		return ""
	}
	return vias[viaIndex(via)].name
}

func shortUnit(unit string) string {
	return strings.NewReplacer("instructions/", "instr./", "transactions", "trans.", "transaction",
		"trans.").Replace(unit)
}

// workloadNames names a workload: its title, an explanation, one of its flows, its column's heading in a summary,
// and its plural if that is not the title.
type workloadNames struct{ Name, Title, Explanation, Flow, Short, Plural string }

func allWorkloads(counted bool) []workloadNames {
	names := []workloadNames{
		{result.WorkloadTCPStream, "Throughput", "one TCP stream", "TCP stream", "streams", "streams"},
		{result.WorkloadUDPStream, "UDP throughput", "one UDP stream", "UDP stream", "UDP", "UDP streams"},
		{result.WorkloadTCPRR, "Request/response", "one byte each way on an open TCP connection", "connection", "requests",
			"requests"},
		{result.WorkloadTCPCRR, "Connect/request/response", "a new TCP connection for each transaction", "client",
			"connections", "connections"},
		{result.WorkloadUDPRR, "UDP request/response", "one datagram each way", "client", "UDP r./r.", "UDP requests"},
		{result.WorkloadCNIAdd, "ADD", "", "call", "ADD", ""},
		{result.WorkloadCNIDel, "DEL", "", "call", "DEL", ""},
		{result.WorkloadFirstPacket, "First packet", "the median time in which connections to services picked at random open",
			"client", "1st packet", ""},
		{result.WorkloadFirstPacketP99, "First packet, 99th percentile", "the same, of the slowest in a hundred", "client",
			"1st p99", ""},
		{result.WorkloadServiceProgram, "Programming", "all services, into empty tables", "writer", "program", ""},
		{result.WorkloadServiceChange, "Change of a service", "from its begin to the first connection at the new backend",
			"writer", "change", ""},
		{result.WorkloadServiceMemory, "Memory", "the kernel's, for a service of four backends", "writer", "memory", ""},
		{result.WorkloadPolicyApply, "Policy", "from the begin of writing it to the first connection that is denied",
			"writer", "apply", ""},
		{result.WorkloadPolicyChange, "Change of a policy",
			"from its begin to the first connection that is allowed or denied", "writer", "change", ""},
	}
	if counted {
		names[1].Title, names[1].Explanation, names[1].Plural = "UDP packets", "small ones, sent one way", "UDP packets"
	}
	return names
}

// nameRows names rows by their ID, with the workload where only some rows of the ID are meant.
func nameRows(rows, all []result.Row) string {
	here, total := map[string]int{}, map[string]int{}
	for _, row := range rows {
		here[row.ID]++
	}
	for _, row := range all {
		total[row.ID]++
	}
	var names []string
	for _, row := range rows {
		name := row.ID
		if here[row.ID] < total[row.ID] {
			name += " (" + row.Key().Title() + ")"
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}
