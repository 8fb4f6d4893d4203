// SPDX-License-Identifier: Apache-2.0

package advise

import (
	"fmt"
	"io"
	"math"
	"slices"
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

// Write writes the sentences, a table of rows, and what would break.
func (a Advice) Write(w io.Writer, table func(header []string, rows [][]any) error) error {
	c := a.Cluster
	fmt.Fprintf(w, "Now: %s, overlay %s; kube-proxy's mode: %s; nodes: %d; ports of Services: %d; endpoints: %d.\n",
		orUnknown(c.Network), orUnknown(c.Overlay), orUnknown(c.Proxy), c.Nodes, c.Ports, c.Endpoints)
	if a.Model != nil && a.Model.Services < c.Ports {
		fmt.Fprintf(w, "Labs have the rules of %d ports: with more, kube-proxy's iptables mode costs more than they show.\n",
			a.Model.Services)
	}
	fmt.Fprintln(w)
	for i, s := range sentences {
		fmt.Fprintf(w, "%d. %s\n", i+1, a.sentence(s.plan, s.text))
	}
	for _, reason := range a.Unpredicted {
		fmt.Fprintf(w, "Not predicted: %s.\n", reason)
	}
	for _, note := range a.Notes {
		fmt.Fprintln(w, note)
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
	fmt.Fprintln(w)
	if err := table(header, rows); err != nil {
		return err
	}
	return a.writeBreaks(w)
}

const mostNamed = 3

func (a Advice) writeBreaks(w io.Writer) error {
	text := "\nWould break: nothing that was found.\n"
	if len(a.Cluster.Unsupported) > 0 {
		text = "\nWould break, with Mustang as the whole network; nodes, Services and policies also in place of kube-proxy:\n"
	}
	for _, b := range a.Cluster.Unsupported {
		text += "- " + b.Name
		if n := len(b.Objects); n > 0 {
			text += ": " + strings.Join(b.Objects[:min(n, mostNamed)], ", ")
			if n > mostNamed {
				text += fmt.Sprintf(" and %d more", n-mostNamed)
			}
		}
		text += "\n"
	}
	for _, unread := range a.Cluster.Unread {
		text += "Not read: " + unread + "\n"
	}
	_, err := io.WriteString(w, text)
	return err
}

func orUnknown(text string) string {
	if text == "" {
		return "unknown"
	}
	return text
}

// sentence sums up what a plan gives to clients of Services, on one node and across two.
func (a Advice) sentence(plan, text string) string {
	var parts []string
	for _, placement := range []struct{ id, text string }{{SameNode, "on one node"}, {TwoNodes, "across nodes"}} {
		var gains []string
		for _, workload := range []string{result.WorkloadTCPRR, result.WorkloadTCPCRR, result.WorkloadTCPStream} {
			i := slices.IndexFunc(a.Rows, func(r Row) bool {
				return r.Path == ClusterIP+"/"+placement.id && r.Workload == workload
			})
			if i < 0 {
				continue
			}
			if p, ok := a.Rows[i].Predicted[plan]; ok {
				gains = append(gains, units[workload]+" "+p.Ratio.gain())
			}
		}
		if len(gains) > 0 {
			parts = append(parts, placement.text+" "+strings.Join(gains, ", "))
		}
	}
	if len(parts) > 0 {
		return text + ", to a Service:\n   " + strings.Join(parts, ";\n   ") + "."
	}
	reason := "not predicted"
	switch proxy := a.Cluster.Proxy; {
	case plan == ProxyOnly && proxy == "none":
		reason = "there is no kube-proxy"
	case plan == NFTables && proxy != "iptables":
		reason = "kube-proxy's mode is " + proxy
		if proxy == "none" {
			reason = "there is no kube-proxy"
		}
	}
	return text + ": " + reason + "."
}

// gain prints "+31 % (24 to 38)", or that the interval covers no difference.
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

// digits prints three significant digits.
func digits(v float64) string {
	if v <= 0 {
		return "0"
	}
	places := max(0, 2-int(math.Floor(math.Log10(v))))
	if places == 0 {
		step := math.Pow(10, math.Floor(math.Log10(v))-2)
		v = math.Round(v/step) * step
	}
	return strconv.FormatFloat(v, 'f', places, 64)
}
