// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"

	"mustang/internal/result"
)

// None stands for a missing figure.
const None = "–"

// decimals is the number of decimal places that shows the largest of values to four
// significant digits.
func decimals(values ...float64) int {
	largest := 0.0
	for _, v := range values {
		largest = max(largest, math.Abs(v))
	}
	if largest == 0 {
		return 0
	}
	return min(max(3-int(math.Floor(math.Log10(largest))), 0), 6)
}

// fewDecimals is Decimals for three significant digits.
func fewDecimals(values ...float64) int { return max(decimals(values...)-1, 0) }

// short prints v rounded to three significant digits.
func short(v float64) string {
	if a := math.Abs(v); a >= 1000 && a < 1e15 {
		unit := math.Pow10(int(math.Floor(math.Log10(a))) - 2)
		v = math.Round(v/unit) * unit
	}
	return Number(v, fewDecimals(v))
}

// Factor prints a ratio of 2 or more.
func Factor(ratio float64) string {
	if ratio >= 100 {
		return Number(ratio, 0) + "×"
	}
	return Number(ratio, 1) + "×"
}

// Number prints v with that many decimal places and commas between thousands.
func Number(v float64, places int) string {
	text := strconv.FormatFloat(math.Abs(v), 'f', places, 64)
	whole, fraction, _ := strings.Cut(text, ".")
	for i := len(whole) - 3; i > 0; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	if fraction != "" {
		whole += "." + fraction
	}
	if v < 0 && strings.Trim(whole, "0.,") != "" {
		return "-" + whole
	}
	return whole
}

// intervalText prints both ends.
func intervalText(ci *[2]float64, places int) string {
	if ci == nil {
		return "too few rounds"
	}
	return Number(ci[0], places) + " to " + Number(ci[1], places)
}

// percentOf prints a share as per cent: 0.251 is "25.1 %", with a space that
// does not break.
func percentOf(share float64) string {
	places := 1
	if math.Abs(share) < 0.00095 {
		places = 2
	}
	return Number(share*100, places) + "\u00a0%"
}

// memorySize prints a size in GiB or MiB.
func memorySize(n uint64) string {
	if n >= 1<<30 {
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	}
	return fmt.Sprintf("%.0f MiB", float64(n)/(1<<20))
}

// seconds prints a duration the way a command line takes it: "2s", "500ms".
func seconds(s float64) string {
	if s < 1 {
		return strconv.FormatFloat(s*1000, 'f', -1, 64) + "ms"
	}
	return strconv.FormatFloat(s, 'f', -1, 64) + "s"
}

// countOf prints n with a noun in the right number.
func countOf(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return Number(float64(n), 0) + " " + noun + "s"
}

// times prints how often something happened.
func times(n int) string {
	if n == 1 {
		return "once"
	}
	return Number(float64(n), 0) + " times"
}

// connectionName names the connection of a row's pods, such as "bridge call-off" or
// "veth+eBPF", unless the row has a label. One host, no overlay and IPv4 go
// without saying.
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
	return strings.ReplaceAll(clean(name), " + eBPF", "+eBPF") // as older files have it
}

// rowName names a row by its label, or by its ID.
func rowName(r result.Row) string { return spelt(clean(cmp.Or(r.Label, r.Repeats, r.ID))) }

// spelt spells the datapath of an ID as connections do.
func spelt(id string) string { return strings.ReplaceAll(id, "+ebpf", "+eBPF") }

// targetName names what the client connects to.
func targetName(target string) string {
	names := map[string]string{
		result.TargetHostIP: "host IP", result.TargetPodIP: "pod IP", result.TargetClusterIP: "cluster IP",
		result.TargetPublishedPort: "published port",
	}
	return cmp.Or(names[target], clean(target))
}

// viaOrder is the order of the kinds of cluster IP.
func viaOrder() []string {
	return []string{
		result.ViaNone, result.ViaIPTables, result.ViaNFTables, result.ViaIPVS, result.ViaEBPFTC, result.ViaEBPFSocket,
		result.ViaDocker,
	}
}

// viaName names what turns the target's address into the server's.
func viaName(via string) string {
	names := map[string]string{result.ViaIPVS: "IPVS", result.ViaEBPFTC: "eBPF packet",
		result.ViaEBPFSocket: "eBPF socket", result.ViaDocker: "Docker"}
	return cmp.Or(names[via], clean(via))
}

// shortUnit shortens a unit for the heading of a column.
func shortUnit(unit string) string {
	return strings.NewReplacer("instructions/", "instr./", "transactions", "trans.", "transaction",
		"trans.").Replace(clean(unit))
}

// workloadNames names a workload: its title, an explanation, one of its flows, the heading of its column in a summary,
// and many of it, where that is not the title.
type workloadNames struct{ Name, Title, Explanation, Flow, Short, Plural string }

// allWorkloads lists the workloads in the order of a report.
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

// shortVia names a kind of cluster IP in a narrow heading.
func shortVia(via string) string {
	switch via {
	case result.ViaIPTables:
		return "ipt"
	case result.ViaNFTables:
		return "nft"
	case result.ViaEBPFTC, result.ViaEBPFSocket:
		return "eBPF"
	}
	return viaName(via)
}

// prefix is the first part of an ID, which the rows of a connection share, with its
// slash.
func prefix(id string) string {
	first, _, _ := strings.Cut(id, "/")
	return first + "/"
}

// workloadLabel is a row's workload, with the number of flows if there are several, and with
// its setup.
func workloadLabel(row result.Row) string {
	label := row.Workload
	if row.Flows > 1 {
		label += fmt.Sprintf("-%d", row.Flows)
	}
	if setup := row.Setup.String(); setup != "" {
		label += " (" + setup + ")"
	}
	return label
}

// countIDs counts rows by ID and by the prefix of the ID.
func countIDs(rows []result.Row) map[string]int {
	n := map[string]int{}
	for _, row := range rows {
		n[row.ID]++
		n[prefix(row.ID)]++
	}
	return n
}

// nameRows names rows by the prefix that all rows of a connection share, by ID where
// only some of them are meant, and with the workload where the ID has others.
func nameRows(rows []result.Row, total map[string]int) string {
	here := countIDs(rows)
	var names []string
	for _, row := range rows {
		shared := prefix(row.ID)
		switch {
		case here[shared] == 0:
		case here[shared] == total[shared] && total[shared] > total[row.ID]:
			names = append(names, "all of "+clean(strings.TrimSuffix(shared, "/")))
			here[shared] = 0
		case here[row.ID] == 0:
		case here[row.ID] == total[row.ID]:
			names = append(names, clean(row.ID))
			here[row.ID] = 0
		default:
			names = append(names, clean(row.ID)+" ("+workloadLabel(row)+")")
		}
	}
	return strings.Join(names, ", ")
}

// inWords joins names as a sentence does.
func inWords(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1]
}

// keepTogether puts no-break spaces into names and figures.
func keepTogether(s string) string {
	return strings.NewReplacer("95 % interval", "95\u00a0%\u00a0interval", " Gbit/s", "\u00a0Gbit/s", " ms", "\u00a0ms",
		" instructions/", "\u00a0instructions/").Replace(s)
}

// LowerFirst writes a title inside a sentence, leaving acronyms such as UDP.
func LowerFirst(s string) string {
	if len(s) > 1 && s[1] >= 'A' && s[1] <= 'Z' {
		return s
	}
	return strings.ToLower(s[:min(1, len(s))]) + s[min(1, len(s)):]
}

// clean makes a string from a file safe to print: no line break, terminal
// sequence or other control character survives, nor one without a width, which makes names look alike.
func clean(s string) string {
	return strings.Join(strings.Fields(strings.Map(func(r rune) rune {
		if unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "�"))), " ")
}

// farFromOne reports whether a ratio is given by its three significant digits.
func farFromOne(ratio float64) bool { return ratio >= 2 || ratio < 0.1 && ratio > 0 }

// shortRatio prints a ratio in few characters. Far from one it has three significant digits.
func shortRatio(r float64, places int) string {
	if farFromOne(r) {
		return Number(r, fewDecimals(r))
	}
	return Number(r, places)
}

// shares prints a range of ratios in per cent.
func shares(least, most float64) string {
	places := 0
	if least < 0.02 || least > 0.95 && most < 1.05 {
		places = 1
	}
	if a, b := Number(100*least, places), Number(100*most, places); a != b {
		return a + " to " + b + "\u00a0%"
	}
	return Number(100*least, places) + "\u00a0%"
}

// cleanAll cleans each string.
func cleanAll(texts []string) []string {
	var out []string
	for _, s := range texts {
		out = append(out, clean(s))
	}
	return out
}

// timestamp prints a time; empty if there is none.
func timestamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05 UTC")
}

// someOf lists at most n of names, and counts the others.
func someOf(names []string, n int) string {
	switch more := len(names) - n; {
	case more <= 0:
		return strings.Join(names, ", ")
	default:
		return fmt.Sprintf("%s and %d more", strings.Join(names[:n], ", "), more)
	}
}
