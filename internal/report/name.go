// SPDX-License-Identifier: Apache-2.0

package report

import (
	"strconv"
	"strings"

	"mustang/internal/result"
)

// workloadName names a workload: in headings, in words, and its flows.
type workloadName struct{ workload, name, plain, flow string }

// workloadNames are the headings of the workloads, in the order in which they
// are shown.
func workloadNames(counted bool) []workloadName {
	names := []workloadName{
		{result.WorkloadTCPStream, "Throughput", "one TCP stream", "TCP stream"},
		{result.WorkloadUDPStream, "UDP throughput", "one UDP stream", "UDP stream"},
		{result.WorkloadTCPRR, "Request/response", "one byte each way on an open TCP connection", "connection"},
		{result.WorkloadTCPCRR, "Connect/request/response", "a new TCP connection for each transaction", "client"},
		{result.WorkloadUDPRR, "UDP request/response", "one datagram each way", "client"},
		{result.WorkloadCNIAdd, "ADD", "a pod is attached, one at a time", "call"},
		{result.WorkloadCNIDel, "DEL", "a pod is detached, one at a time", "call"},
	}
	if counted {
		names[1].name, names[1].plain = "UDP packets", "small ones, sent one way"
	}
	return names
}

// nameFlows names the set, and its flows where there are several or the suite has
// sets with more.
func (s *set) nameFlows(w workloadName, several bool) {
	s.name, s.plain, s.short = w.name, w.plain, lowerFirst(w.name)
	stream := strings.HasSuffix(w.workload, "_stream") && !s.reading.counted
	if stream {
		s.short = "1 " + w.flow
	}
	if s.flows == 1 && !several {
		return
	}
	if ofCalls(s.workload) {
		s.nameCalls()
		return
	}
	flows := count(s.flows, w.flow)
	if s.name += ", " + flows; stream {
		s.plain, s.short = "", flows
		return
	}
	s.short += ", " + strconv.Itoa(s.flows)
}

// heading is the set's name with what it does.
func (s *set) heading() string {
	if s.plain == "" {
		return s.name
	}
	return s.name + " (" + s.plain + ")"
}

// isBaseline tells rows that connect no pod to another and serve only as a
// yardstick: loopback, the host's own address, host to pod.
func isBaseline(r result.Row) bool {
	return r.Link == "host" || r.Target == result.TargetLoopback || r.Target == result.TargetHostIP ||
		!strings.Contains(r.ID, "/")
}

// again marks, as a row's variant and at the end of its ID, the second
// measurement of an A/A pair.
const again = "again"

// isRepeat tells such rows, also when they have no figure to compare.
func isRepeat(r result.Row) bool {
	return r.Variant == again || strings.HasSuffix(r.ID, "/"+again)
}

// connectionName names how a row's pods are connected, such as "bridge
// call-off" or "veth + eBPF". What is the same for most files (one host, no
// overlay, IPv4) is not said.
func connectionName(r result.Row) string {
	name := r.Link
	switch {
	case r.Variant == "" || r.Variant == again:
	case strings.HasPrefix(r.Link, "ovs-"): // of the switch, not of the link
		name += " (" + r.Variant + ")"
	default:
		name += " " + r.Variant
	}
	if isBaseline(r) {
		if first, _, _ := strings.Cut(r.ID, "/"); first != "" {
			name = strings.ReplaceAll(first, "-", " ")
		}
	} else if r.Datapath == result.DatapathEBPF {
		name += " + eBPF"
	}
	var extra []string
	if r.Placement == result.PlacementTwoHosts {
		extra = append(extra, "two hosts")
	}
	if r.Overlay == result.OverlayVXLAN {
		extra = append(extra, "VXLAN")
	}
	if r.Family == "ipv6" {
		extra = append(extra, "IPv6")
	}
	if len(extra) > 0 {
		name += ", " + strings.Join(extra, ", ")
	}
	return clean(name)
}

// wayName names a row by its ID, with the processor of its guests if it has any.
func wayName(r result.Row) string {
	return strings.TrimSuffix(clean(r.ID), "/"+again) + guestMark(r)
}

// guestMark says that a row's pods are virtual machines, and whose processor they
// had.
func guestMark(r result.Row) string {
	for _, word := range strings.FieldsFunc(strings.ToLower(r.Variant+" "+r.Note), func(c rune) bool { return c < 'a' || c > 'z' }) {
		if word == "tcg" || word == "kvm" {
			return " (" + word + ")"
		}
	}
	return ""
}

// guestWords explains such a mark.
func guestWords(mark string) string {
	if mark == "kvm" {
		return "(kvm): the pods are virtual machines."
	}
	return "(tcg): the pods are virtual machines whose processors are emulated in software."
}

// guestMark is that of the entry.
func (e *entry) guestMark() string { return guestMark(e.Row) }

// targetName names what the client connects to.
func targetName(target string) string {
	switch target {
	case result.TargetLoopback:
		return "loopback"
	case result.TargetHostIP:
		return "host IP"
	case result.TargetPodIP:
		return "pod IP"
	case result.TargetClusterIP:
		return "cluster IP"
	case result.TargetPublishedPort:
		return "published port"
	}
	return clean(target)
}

// viaOrder is the order in which ways of cluster IP are shown.
func viaOrder() []string {
	return []string{
		result.ViaNone, result.ViaIPTables, result.ViaNFTables, result.ViaEBPFTC, result.ViaEBPFSocket, result.ViaDocker,
	}
}

// viaTitle is viaName for headings and sentences.
func viaTitle(via string) string {
	switch via {
	case result.ViaEBPFTC:
		return "eBPF (per packet)"
	case result.ViaEBPFSocket:
		return "eBPF (socket)"
	}
	return viaName(via)
}

// viaName names what turns the target's address into the server's.
func viaName(via string) string {
	switch via {
	case result.ViaEBPFTC:
		return "eBPF packet"
	case result.ViaEBPFSocket:
		return "eBPF socket"
	case result.ViaDocker:
		return "Docker"
	}
	return clean(via)
}

// shortUnit is a row's unit, brief enough for a column's heading.
func shortUnit(unit string) string {
	return strings.NewReplacer("instructions/", "instr./", "transactions", "trans.", "transaction", "trans.").Replace(clean(unit))
}

// clean makes a string from a file safe to print: no line break, terminal
// sequence or other control character survives.
func clean(s string) string {
	return strings.Join(strings.Fields(strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 || r == '\u2028' || r == '\u2029' || r >= '\u202a' && r <= '\u202e' || r >= '\u2066' && r <= '\u2069' {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "�"))), " ")
}
