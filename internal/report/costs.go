// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"slices"
	"strings"

	"mustang/internal/result"
)

// link names the link of the row's pods, with eBPF or without.
func (e *entry) link() string { return strings.TrimSpace(strings.Replace(e.name, "+eBPF", "", 1)) }

// costKey is a question on a link and a service proxy.
type costKey struct{ link, proxy, question string }

// what names what the cost is of.
func (k costKey) what() string { return strings.TrimPrefix(questions[k.question], "cost of ") }

// findCosts indexes the comparisons that tell what a service proxy costs.
func (t *workloadTable) findCosts() {
	t.priced = map[costKey]result.Comparison{}
	for _, c := range t.comparisons {
		if n := t.byID[c.Numerator]; n != nil && c.Ratio > 0 && c.RoundsDone() > 0 {
			if k := (costKey{n.link(), n.Proxy, c.Asks}); t.priced[k].Numerator == "" {
				t.priced[k] = c
			}
		}
	}
}

// links lists the links of pods with a figure: by the first workload, the best first.
func (st *suiteTables) links() []string {
	var out []string
	for _, t := range st.workloads {
		for _, c := range t.contest {
			out = append(out, c.link())
		}
		for _, e := range t.measured() {
			if !e.Baseline {
				out = append(out, e.link())
			}
		}
	}
	seen := map[string]bool{}
	return slices.DeleteFunc(out, func(name string) bool {
		again := seen[name]
		seen[name] = true
		return again
	})
}

// prices lists the questions on costs that a workload of a matrix answers.
func (st *suiteTables) prices() []costKey {
	var out []costKey
	for _, of := range st.links() {
		for _, proxy := range viaOrder() {
			found := 0
			for _, question := range []string{result.AsksProxy, result.AsksService, result.AsksTotal} {
				k := costKey{of, proxy, question}
				asked := slices.ContainsFunc(st.workloads, func(t *workloadTable) bool { return t.priced[k].Numerator != "" })
				if asked && found < 2 { // the third is their product, which all tables have
					found++
					out = append(out, k)
				}
			}
		}
	}
	return out
}

// mostServiceLines is the most links of which the answer says what Services cost; the table has the others.
const mostServiceLines = 2

// serviceLines are the verdicts on Services, a line a link: what each proxy costs in requests, all traffic and a
// Service on top.
func (st *suiteTables) serviceLines() []string {
	i := max(0, slices.IndexFunc(st.workloads, func(t *workloadTable) bool {
		return t.workload == result.WorkloadTCPRR &&
			t.flows <= 1
	}))
	if len(st.workloads) == 0 {
		return nil
	}
	t, cost := st.workloads[i], func(k costKey) string { return judge(st.workloads[i].priced[k]).percent() }
	var out []string
	for _, of := range st.links() {
		var proxies []string
		for _, proxy := range viaOrder() {
			all, service := costKey{of, proxy, result.AsksProxy}, costKey{of, proxy, result.AsksService}
			if t.priced[all].Numerator != "" && t.priced[service].Numerator != "" {
				proxies = append(proxies, fmt.Sprintf("with %s %s, a Service %s on top", viaName(proxy), cost(all), cost(service)))
			}
		}
		if len(proxies) > 0 && len(out) < mostServiceLines {
			out = append(out, fmt.Sprintf("%s on %s: %s.", upper(t.plural()), of, strings.Join(proxies, "; ")))
		}
	}
	return out
}

// costTable has a line for each question on costs and a column for each workload.
func (st *suiteTables) costTable() Table {
	effects := "Effects are changes of the rate, − is slower,"
	if st.run.Counted() {
		effects = "Effects are changes of the count, + is more work,"
	}
	out := Table{Title: "What Services cost", Columns: []Column{{Head: []string{"link"}}, {Head: []string{"proxy"}},
		{Head: []string{"effect on"}}},
		Notes: []string{effects +
			" against the same link without a service proxy; of a Service on top, against the pod IP beside the proxy. " +
			"±\u00a0half of the 95\u00a0% interval. within: no difference found. *\u00a0not certain."}}
	for _, p := range st.prices() {
		out.Lines = append(out.Lines, Line{Status: result.StatusOK})
		for i, text := range []string{p.link, viaName(p.proxy), p.what()} {
			out.Columns[i].Cells = append(out.Columns[i].Cells, Cell{Text: text})
		}
	}
	for i, t := range st.workloads {
		c := Column{Head: []string{t.briefHead()}, Right: true, Rank: 1 + i}
		for _, p := range st.prices() {
			cell := Cell{Text: None}
			if found, ok := t.priced[p]; ok {
				cell.Text = judge(found).percent()
			}
			c.Cells = append(c.Cells, cell)
		}
		out.Columns = append(out.Columns, c)
	}
	return out
}
