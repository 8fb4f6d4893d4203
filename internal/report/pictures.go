// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"strings"

	"mustang/internal/report/format"
	"mustang/internal/report/plots"
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
		charts[slow] = &Chart{Shape: plots.ShapeForest, Log: true, Title: upper(t.plural()) + ", " + t.unit, Band: t.band()}
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

// costPicture draws both costs of each service proxy on each link: of all pod traffic, and of a Service on top.
func (t *workloadTable) costPicture() Figure {
	c := Chart{Shape: plots.ShapeForest, Log: true, Title: upper(t.plural()) + ", ratio", Band: t.band()}
	for _, of := range t.suite.linkOrder() {
		name := t.suite.linkName(of)
		for _, proxy := range t.suite.proxies(of) {
			for _, question := range []string{result.AsksProxy, result.AsksService} {
				d, e := t.cost(of, proxy, question)
				if e == nil {
					continue
				}
				m := t.mark(e, d.ratio, "")
				what := map[string]string{result.AsksProxy: "all traffic", result.AsksService: "Service on top"}[question]
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

// unmarked is the text of a mark without the sign of a verdict, which its form shows.
func unmarked(m Mark) string { return strings.Trim(m.Text, " ~?") }

// upper writes a title with a capital letter.
func upper(s string) string { return strings.ToUpper(s[:1]) + s[1:] }
