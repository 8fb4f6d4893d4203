// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"slices"
	"strings"

	"mustang/internal/result"
)

func (e *entry) link() string { return strings.TrimSpace(strings.Replace(e.name, "+eBPF", "", 1)) }

type costKey struct{ link, proxy, question string }

func (k costKey) what() string { return strings.TrimPrefix(questions[k.question], "cost of ") }

func (t *workload) knows(k costKey) bool { return t.priced[k].Numerator != "" }

func (t *workload) cost(k costKey) string {
	if !t.knows(k) {
		return None
	}
	return judge(t.priced[k]).percent()
}

// links lists the links of pods with a figure: by the first workload, the best first.
func (st *suite) links() (out []string) {
	for _, t := range st.workloads {
		entries := filter(t.measured(), func(e *entry) bool { return !e.Baseline })
		for _, c := range slices.Backward(t.contest) {
			entries = slices.Insert(entries, 0, c.entry)
		}
		for _, e := range entries {
			if !slices.Contains(out, e.link()) {
				out = append(out, e.link())
			}
		}
	}
	return out
}

func (st *suite) prices() (out []costKey) {
	for _, link := range st.links() {
		for _, proxy := range vias {
			found := 0
			for _, question := range []string{result.AsksProxy, result.AsksService, result.AsksTotal} {
				k := costKey{link, proxy.via, question}
				asked := slices.ContainsFunc(st.workloads, func(t *workload) bool { return t.knows(k) })
				if asked && found < 2 { // the third is their product, which all tables have
					found++
					out = append(out, k)
				}
			}
		}
	}
	return out
}

const mostServiceLinks = 2 // limits the links in the answer's lines on Services; the table has the others

// serviceLines are the verdicts on Services: what each proxy changes for requests, a line a link and proxy.
func (st *suite) serviceLines() (out []string) {
	t := st.workloads[max(0, slices.IndexFunc(st.workloads, func(t *workload) bool {
		return t.Workload == result.WorkloadTCPRR && t.Flows == 1
	}))]
	links := 0
	for _, link := range st.links() {
		before := len(out)
		for _, proxy := range vias {
			all, service := costKey{link, proxy.via, result.AsksProxy}, costKey{link, proxy.via, result.AsksService}
			if t.knows(all) && t.knows(service) {
				change, more := t.change(all, "no change", ""), "another "
				if strings.HasPrefix(change, "no change") {
					more = ""
				}
				out = append(out, fmt.Sprintf("%s on %s with %s: %s. To a Service: %s.", upper(t.plural()), link, proxy.name,
					change, t.change(service, "no further change", more)))
			}
		}
		if len(out) > before {
			links++
		}
		if links == mostServiceLinks {
			break
		}
	}
	return out
}

func (t *workload) change(k costKey, none, found string) string {
	if cost := t.cost(k); strings.HasPrefix(cost, "within ") {
		return fmt.Sprintf("%s (%s)", none, cost)
	}
	return found + t.cost(k)
}

func (st *suite) costTable() Table {
	effects := "Effects are changes of the rate, − is slower,"
	if st.run.Counted() {
		effects = "Effects are changes of the count, + is more work,"
	}
	out := &Table{Title: "What Services cost", Columns: []Column{left(0, "link"), left(0, "proxy"), left(0, "effect on")},
		Notes: []string{effects +
			" against the same link without a service proxy; of a Service on top, against the pod IP beside the proxy. " +
			"± the longer side of the 95 % interval. within: no difference found. * not certain."}}
	for i, t := range st.workloads {
		out.Columns = append(out.Columns, right(1+i, t.briefHead()))
	}
	for _, k := range st.prices() {
		costs := convert(st.workloads, func(t *workload) any { return t.cost(k) })
		out.add(Line{Status: result.StatusOK}, append([]any{k.link, viaName(k.proxy), k.what()}, costs...)...)
	}
	return *out.trimmed()
}

// costChart draws the cost of each service proxy for all pod traffic and for a Service on top, or their total.
func (t *workload) costChart() Figure {
	c := Chart{Title: upper(t.plural()) + ", ratio", Band: t.band()}
	for _, k := range t.suite.prices() {
		parts := t.knows(costKey{k.link, k.proxy, result.AsksProxy}) ||
			t.knows(costKey{k.link, k.proxy, result.AsksService})
		if !t.knows(k) || k.question == result.AsksTotal && parts {
			continue
		}
		found := t.priced[k]
		c.Marks = append(c.Marks, t.mark(t.byID[found.Numerator], judge(found), k.link,
			vias[viaIndex(k.proxy)].short+", "+k.what()))
	}
	if len(c.Marks) == 0 {
		return nil
	}
	return Figure{c}
}
