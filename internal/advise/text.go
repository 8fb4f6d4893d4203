// SPDX-License-Identifier: Apache-2.0

package advise

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"

	"mustang/internal/result"
)

// Advice has the figures of a cluster's network, predictions for other networks, and features that would break.
type Advice struct {
	Schema  int     `json:"schema"`
	Cluster Cluster `json:"cluster"`
	// Model describes the labs. It is nil if there were none: Unpredicted has the reason.
	Model       *Model   `json:"model"`
	Rows        []Row    `json:"rows"`
	Unpredicted []string `json:"unpredicted,omitempty"`
	Notes       []string `json:"notes,omitempty"` // why figures may be wrong
}

// AdviceSchema is the version of the JSON form of an [Advice].
const AdviceSchema = 1

// sentences describe the plans.
var sentences = []struct{ plan, text string }{
	{WholeNetwork, "Mustang as the whole network"},
	{ProxyOnly, "Mustang in place of kube-proxy only"},
	{NFTables, "kube-proxy's nftables mode only"},
}

var units = map[string]string{result.WorkloadTCPRR: "requests", result.WorkloadTCPCRR: "connections",
	result.WorkloadTCPStream: "throughput"}

const mostNamed = 3

// Write writes the sentences, a table of rows, and what would break. Foreign texts stay on their lines.
func (a Advice) Write(w io.Writer, table func(header []string, rows [][]any) error) error {
	line := func(format string, args ...any) {
		fmt.Fprintln(w, strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "?"))
	}
	c, unknown := a.Cluster, "unknown"
	line("Now: %s, overlay %s; kube-proxy's mode: %s; nodes: %d; ports of Services: %d; endpoints: %d.",
		cmp.Or(c.Network, unknown), cmp.Or(c.Overlay, unknown), cmp.Or(c.Proxy, unknown), c.Nodes, c.Ports, c.Endpoints)
	line("")
	for i, s := range sentences {
		if gains := a.gains(s.plan); len(gains) > 0 {
			line("%d. %s, to a Service:", i+1, s.text)
			fmt.Fprintf(w, "   %s.\n", strings.Join(gains, ";\n   "))
		} else {
			line("%d. %s: %s.", i+1, s.text, a.reason(s.plan))
		}
	}
	for _, reason := range a.Unpredicted {
		line("Not predicted: %s.", reason)
	}
	for _, note := range a.Notes {
		line("%s", note)
	}
	header := []string{"PATH", "WORKLOAD", "UNIT", "NOW", "1. MUSTANG", "2. PROXY ONLY", "3. NFTABLES"}
	var rows [][]any
	for _, r := range a.Rows {
		cells := []any{r.Path, r.Workload, r.Unit, r.Now.text()}
		for _, s := range sentences {
			cells = append(cells, r.Predicted[s.plan].Figure.text())
		}
		rows = append(rows, cells)
	}
	line("")
	if len(rows) > 0 {
		if err := table(header, rows); err != nil {
			return err
		}
		line("")
	}
	if len(c.Unsupported) == 0 {
		line("Would break: nothing that was found.")
	} else {
		line("Would break with Mustang as the whole network (nodes, Services and policies also in place of kube-proxy):")
	}
	for _, f := range c.Unsupported {
		text, more := f.Name, ""
		if n := len(f.Objects); n > mostNamed {
			more = fmt.Sprintf(" and %d more", n-mostNamed)
		}
		if len(f.Objects) > 0 {
			text += ": " + strings.Join(f.Objects[:min(len(f.Objects), mostNamed)], ", ") + more
		}
		line("- %s", text)
	}
	if len(c.Unread) > 0 {
		line("Not read: %s", strings.Join(c.Unread, ", "))
	}
	return nil
}

// gains sums up what a plan gives to clients of Services, on one node and across two.
func (a Advice) gains(plan string) (all []string) {
	for _, placement := range []struct{ id, text string }{{SameNode, "on one node"}, {TwoNodes, "across nodes"}} {
		var gains []string
		for _, workload := range []string{result.WorkloadTCPRR, result.WorkloadTCPCRR, result.WorkloadTCPStream} {
			for _, r := range a.Rows {
				p, ok := r.Predicted[plan]
				if ok && r.Path == ClusterIP+"/"+placement.id && r.Workload == workload {
					gains = append(gains, units[workload]+" "+p.Ratio.gain())
				}
			}
		}
		if len(gains) > 0 {
			all = append(all, placement.text+" "+strings.Join(gains, ", "))
		}
	}
	return all
}

// reason returns why a plan has no gains.
func (a Advice) reason(plan string) string {
	switch proxy := a.Cluster.Proxy; {
	case plan != WholeNetwork && proxy == "none":
		return "there is no kube-proxy"
	case plan == NFTables && proxy != "iptables" && proxy != "":
		return "kube-proxy's mode is " + proxy
	case len(a.Unpredicted) == 0:
		return "too little time for intervals: set a longer --time"
	}
	return "not predicted"
}

// gain prints "+31 % (+24 to +38 %)", or "unclear (−4 to +34 %)" if the interval contains a ratio of 1.
func (f Figure) gain() string {
	percent := func(ratio float64) string {
		return strings.Replace(fmt.Sprintf("%+.0f", 100*(ratio-1)), "-", "−", 1)
	}
	interval := fmt.Sprintf("(%s to %s %%)", percent(f.CI95[0]), percent(f.CI95[1]))
	if f.CI95[0] <= 1 && f.CI95[1] >= 1 {
		return "unclear " + interval
	}
	return percent(f.Value) + " % " + interval
}

// text prints a figure with three digits, and its interval; empty for none.
func (f Figure) text() string {
	if f.Value == 0 {
		return ""
	}
	text := digits(f.Value)
	if f.CI95 != nil {
		text += " (" + digits(f.CI95[0]) + "–" + digits(f.CI95[1]) + ")"
	}
	return text
}

// digits prints three significant digits, without zeros at the end.
func digits(v float64) string {
	v, _ = strconv.ParseFloat(strconv.FormatFloat(v, 'e', 2, 64), 64)
	return strconv.FormatFloat(v, 'f', -1, 64)
}
