// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"slices"
	"strings"

	"mustang/internal/report/format"

	"mustang/internal/result"
)

// rankPicture draws the ratios of the links to the best one: those in the kernel, and apart from them those through
// user space.
func (t *workloadTable) rankPicture() (kernel, user Figure) {
	all := t.contest
	if len(all) < 2 {
		return nil, nil
	}
	best := all[0].entry
	charts := map[bool]*Chart{}
	for _, slow := range []bool{false, true} {
		charts[slow] = &Chart{Shape: ShapeForest, Log: true, Title: upper(t.plural()) + ", " + t.unit, Band: t.band()}
	}
	charts[true].Title += ", through user space"
	for _, c := range all {
		m := t.mark(c.entry, c.ratio, "")
		m.Group, m.Label = "", c.entry.named()
		setRatio(&m, c.difference)
		m.Text = unmarked(m)
		if c.entry == best {
			m.Hollow, m.Text = false, "1"
		}
		m.Figure = format.Short(best.Median * c.ratio)
		m.Tip = fmt.Sprintf("%s: %s", c.name, t.figureBy(best, c.ratio))
		if c.entry != best {
			m.Tip += fmt.Sprintf("; %s of that of %s", ratioWords(c.difference), best.name)
		}
		m.Tip += "; " + format.Count(len(c.Samples), "sample") + "."
		chart := charts[c.class == result.ClassUserSpace]
		chart.Marks = append(chart.Marks, m)
	}
	kernel = Figure{*charts[false]}
	if len(charts[true].Marks) > 0 {
		user = Figure{*charts[true]}
	}
	return kernel, user
}

// costWords name the questions on costs in pictures. A total is drawn where neither of its parts has a figure.
func costWords(question string) string {
	switch question {
	case result.AsksProxy:
		return "all traffic"
	case result.AsksService:
		return "Service on top"
	}
	return "total"
}

// pricedQuestions lists the questions whose cost the picture draws for a service proxy on a link.
func (t *workloadTable) pricedQuestions(of link, proxy string) []string {
	var out []string
	for _, question := range []string{result.AsksProxy, result.AsksService} {
		if _, e := t.cost(of, proxy, question); e != nil {
			out = append(out, question)
		}
	}
	if _, e := t.cost(of, proxy, result.AsksTotal); e != nil && len(out) == 0 {
		out = append(out, result.AsksTotal)
	}
	return out
}

// costPicture draws both costs of each service proxy on each link: of all pod traffic, and of a Service on top; or
// their total.
func (t *workloadTable) costPicture() Figure {
	c := Chart{Shape: ShapeForest, Log: true, Title: upper(t.plural()) + ", ratio", Band: t.band()}
	for _, of := range t.suite.linkOrder() {
		name := t.suite.linkName(of)
		for _, proxy := range t.suite.proxies(of) {
			for _, question := range t.pricedQuestions(of, proxy) {
				d, e := t.cost(of, proxy, question)
				m, what := t.mark(e, d.ratio, ""), costWords(question)
				m.Group, m.Label = name, format.ShortVia(proxy)+", "+what
				setRatio(&m, d)
				m.Text = unmarked(m)
				m.Tip = fmt.Sprintf("%s, %s, %s: %s.", m.Group, format.Via(proxy), what, ratioWords(d))
				c.Marks = append(c.Marks, m)
			}
		}
	}
	if len(c.Marks) == 0 {
		return nil
	}
	return Figure{c}
}

// drawsTotal reports whether the cost picture has a total.
func (t *workloadTable) drawsTotal() bool {
	return slices.ContainsFunc(t.suite.linkOrder(), func(of link) bool {
		return slices.ContainsFunc(t.suite.proxies(of), func(proxy string) bool {
			return slices.Contains(t.pricedQuestions(of, proxy), result.AsksTotal)
		})
	})
}

// linkKey names the symbols of the pictures of links, by color.
func (st *suiteTables) linkKey(workloads []Workload) []Legend {
	seen := map[string]bool{}
	for _, w := range workloads {
		for _, c := range slices.Concat(w.Forest, w.UserSpace, w.Services) {
			for _, m := range c.Marks {
				seen[m.Color] = true
			}
		}
	}
	all := []Legend{
		{Color: result.ColorSlate, Name: "no proxy"}, {Color: result.ColorOrange, Name: "ipt: kube-proxy, iptables"},
		{Color: result.ColorPurple, Name: "nft: kube-proxy, nftables"}, {Color: result.ColorTeal, Name: "eBPF: Mustang"},
		{Color: result.ColorOlive, Name: "eBPF: Mustang, at the socket"},
	}
	return slices.DeleteFunc(all, func(l Legend) bool { return !seen[l.Color] })
}

// linkLegend tells in one line how the pictures of links are read.
func (st *suiteTables) linkLegend(workloads []Workload) string {
	some, band, cut := false, false, false
	for _, w := range workloads {
		for _, c := range slices.Concat(w.Forest, w.UserSpace, w.Services) {
			some, band, cut = true, band || c.Band > 0, cut || c.Cut()
		}
	}
	if !some {
		return ""
	}
	parts := []string{"Right is better.", "Hollow: no difference found.", "Line: 95\u00a0% interval."}
	if st.workloads[0].wording.less || st.workloads[0].inTime() {
		parts[0] = "Left is better."
	}
	if band {
		parts = append(parts, "Band: one path measured twice.")
	}
	if slices.ContainsFunc(st.workloads, (*workloadTable).drawsTotal) {
		parts = append(parts, "Total: all traffic and Service on top together.")
	}
	if cut {
		parts = append(parts, "Arrow: interval cut off.")
	}
	return strings.Join(parts, " ")
}

// unmarked is the text of a mark without the sign of a verdict, which its form shows.
func unmarked(m Mark) string { return strings.Trim(m.Text, " ~?") }

// upper writes a title with a capital letter.
func upper(s string) string { return strings.ToUpper(s[:1]) + s[1:] }
