// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"math"
	"slices"

	"mustang/internal/report/format"
	"mustang/internal/result"
)

// linkTable has a line for each link: for each workload its pod IP's figure, and what a Service reaches against that
// by each proxy.
func (st *suiteTables) linkTable() Table {
	order := st.linkOrder()
	out := Table{Columns: []Column{{Head: []string{""}}}}
	for _, of := range order {
		out.Columns[0].Cells = append(out.Columns[0].Cells, Cell{Text: st.linkName(of)})
		line := Line{Status: result.StatusOK, Rank: 2}
		if len(st.proxies(of)) > 0 {
			line.Rank = 1
		}
		out.Lines = append(out.Lines, line)
	}
	for i, t := range st.workloads {
		columns := t.linkColumns(order)
		for j, c := range columns {
			c.Right, c.Rank, c.Joined, c.Tight = true, 1+i, j > 0, j > 1
			out.Columns = append(out.Columns, c)
		}
	}
	if slices.ContainsFunc(out.Columns, func(c Column) bool { return c.Joined }) {
		verb := map[bool]string{true: "takes", false: "reaches"}[st.counted]
		out.Notes = []string{"ipt, nft, eBPF: what a Service by iptables, nftables or eBPF " + verb +
			" against the pod IP without a service proxy, in\u00a0%, ±\u00a0half the 95\u00a0% interval: both costs together. *\u00a0not certain."}
	}
	out.Signs = []Sign{{format.None, format.None + "\u00a0not measured."}}
	return out
}

// linkOrder lists the links by the figure of their pod IP for requests, the best first; without requests, for the first
// workload.
func (st *suiteTables) linkOrder() []link {
	order := st.links()
	by := st.workloads[0]
	for _, t := range st.workloads {
		if t.workload == result.WorkloadTCPRR {
			by = t
			break
		}
	}
	ratios := by.podIPs()
	some := map[link]bool{}
	for _, t := range st.workloads {
		for of := range t.podIPs() {
			some[of] = true
		}
	}
	order = slices.DeleteFunc(order, func(of link) bool { // of which the file has only a variant
		return !some[of] && len(st.proxies(of)) == 0
	})
	slices.SortStableFunc(order, func(a, b link) int {
		x, y := ratios[a], ratios[b]
		if by.wording.less && x > 0 && y > 0 {
			return cmp.Compare(x, y)
		}
		return cmp.Compare(y, x)
	})
	return order
}

// podIPs are the ratios of the links' pod IPs without a service proxy to the best row.
func (t *workloadTable) podIPs() map[link]float64 {
	out := map[link]float64{}
	for _, c := range t.contest {
		if c.proxy() == "" {
			out[c.link()] = c.ratio
		}
	}
	return out
}

// linkColumns are a workload's columns for links.
func (t *workloadTable) linkColumns(order []link) []Column {
	unit := format.ShortUnit(t.unit)
	scale := 1.0
	if t.unit == result.UnitTransactions {
		unit, scale = "1000/s", 1e-3
	}
	all := t.contest
	ratios := t.podIPs()
	columns := []Column{{Over: t.briefHead(), Head: []string{unit}}}
	for _, of := range order {
		text := format.None
		if r, ok := ratios[of]; ok {
			text = format.Short(scale * all[0].Median * r)
		}
		columns[0].Cells = append(columns[0].Cells, Cell{Text: text})
	}
	kinds := [][]string{{result.ViaIPTables}, {result.ViaNFTables}, {result.ViaEBPFTC, result.ViaEBPFSocket}}
	for _, proxies := range kinds {
		c, some := Column{Head: []string{format.ShortVia(proxies[0])}}, false
		for _, of := range order {
			cell := Cell{Text: format.None}
			for _, proxy := range proxies {
				if d, e := t.cost(of, proxy, result.AsksTotal); e != nil {
					cell, some = Cell{Text: signed(d)}, true
					break
				}
			}
			c.Cells = append(c.Cells, cell)
		}
		if some {
			columns = append(columns, c)
		}
	}
	return columns
}

// signed prints a difference in whole per cent with half of its interval, such as "−21±1".
func signed(d difference) string {
	if d.ratio >= 10 {
		return format.Factor(d.ratio)
	}
	by := math.Round(100 * (d.ratio - 1))
	text := format.Number(math.Abs(by), 0)
	switch {
	case by < 0:
		text = "−" + text
	case by > 0:
		text = "+" + text
	}
	if d.ci == nil {
		return text + "*"
	}
	text += "±" + format.Number(max(math.Ceil(100*d.half()-1e-6), 1), 0)
	if d.verdict == tied {
		return text + "*"
	}
	return text
}
