// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"mustang/internal/report/format"
	"mustang/internal/result"
)

// link is what rows of one link have in common, with eBPF and without.
type link struct{ mode, variant, placement, overlay, family string }

// link returns the row's link.
func (e *entry) link() link {
	return link{e.Link, strings.TrimSpace(strings.TrimSuffix(e.Variant, "big-tcp")), e.Placement, e.Overlay, e.Family}
}

// proxy is the service proxy of the row's network; files of earlier versions name only that which the row uses.
func (e *entry) proxy() string {
	switch {
	case e.Proxy != "":
		return e.Proxy
	case e.Via != result.ViaNone:
		return e.Via
	case e.Datapath == result.DatapathEBPF:
		return result.ViaEBPFTC
	}
	return ""
}

// asks is the question that a comparison answers, where the file does not say it.
func (t *workloadTable) asks(c result.Comparison) string {
	n, d := t.byID[c.Numerator], t.byID[c.Denominator]
	if c.Asks != "" || c.AA || n == nil || d == nil || d.Target != result.TargetPodIP ||
		n.link() != d.link() || n.Variant != d.Variant {
		return c.Asks
	}
	switch {
	case n.Target == result.TargetClusterIP && n.proxy() == d.proxy():
		return result.AsksService
	case d.proxy() != "" || n.proxy() == "":
		return ""
	case n.Target == result.TargetClusterIP:
		return result.AsksTotal
	case n.Target == result.TargetPodIP:
		return result.AsksProxy
	}
	return ""
}

// costKey is a question on a link and a service proxy.
type costKey struct {
	of              link
	proxy, question string
}

// findCosts indexes the comparisons that tell what a service proxy costs.
func (t *workloadTable) findCosts() {
	t.priced = map[costKey]result.Comparison{}
	for _, c := range t.comparisons {
		n := t.byID[c.Numerator]
		if n == nil || c.Ratio <= 0 || c.RoundsDone() == 0 {
			continue
		}
		if k := (costKey{n.link(), n.proxy(), t.asks(c)}); t.priced[k].Numerator == "" {
			t.priced[k] = c
		}
	}
}

// cost returns what a question on a link and a service proxy found, and the row that it is of; nil without a figure.
func (t *workloadTable) cost(of link, proxy, question string) (difference, *entry) {
	if c, ok := t.priced[costKey{of, proxy, question}]; ok {
		return judge(c), t.byID[c.Numerator]
	}
	return difference{}, nil
}

// program is software that serves Services, in the values of [result.Row.Proxy].
type program struct {
	name    string
	proxies []string
}

// programs lists the software that is compared.
func programs() []program {
	return []program{
		{"kube-proxy", []string{result.ViaIPTables, result.ViaNFTables}},
		{"Mustang's eBPF", []string{result.ViaEBPFTC}},
		{"Mustang's eBPF at the socket", []string{result.ViaEBPFSocket}},
	}
}

// proxies lists the service proxies that have a cost on a link in a workload.
func (st *suiteTables) proxies(of link) []string {
	var out []string
	for _, p := range programs() {
		for _, proxy := range p.proxies {
			if slices.ContainsFunc(st.workloads, func(t *workloadTable) bool {
				_, all := t.cost(of, proxy, result.AsksProxy)
				_, service := t.cost(of, proxy, result.AsksService)
				_, total := t.cost(of, proxy, result.AsksTotal)
				return all != nil || service != nil || total != nil
			}) {
				out = append(out, proxy)
			}
		}
	}
	return out
}

// links lists the links with a contender, in the file's order.
func (st *suiteTables) links() []link {
	var out []link
	for _, t := range st.workloads {
		for _, e := range t.entries {
			if e.contends() && !slices.Contains(out, e.link()) {
				out = append(out, e.link())
			}
		}
	}
	return out
}

// linkName is the name of a link without eBPF.
func (st *suiteTables) linkName(of link) string {
	for _, t := range st.workloads {
		for _, e := range t.entries {
			if e.contends() && e.link() == of {
				return strings.Replace(e.name, "+eBPF", "", 1)
			}
		}
	}
	return format.Clean(of.mode)
}

// muchMore is the cost of a Service from which on a link gets a sentence though the proxy costs other traffic nothing.
const muchMore = 0.1

// costSentences tell what each service proxy costs all traffic, and what a Service costs on top: on the link with the
// most proxies, and on links where kube-proxy costs Services alone much.
func (st *suiteTables) costSentences() []string {
	links := st.links()
	if len(links) == 0 {
		return nil
	}
	main := slices.MaxFunc(links, func(a, b link) int { return cmp.Compare(len(st.proxies(a)), len(st.proxies(b))) })
	var out []string
	for _, p := range programs()[:2] {
		out = append(out, st.costSentence(main, p))
	}
	for _, of := range links {
		if of != main && st.onlyServices(of) {
			out = append(out, st.costSentence(of, programs()[0]))
		}
	}
	return out
}

// onlyServices reports whether kube-proxy costs Services of a link much, and other traffic nothing.
func (st *suiteTables) onlyServices(of link) bool {
	much := false
	for _, t := range st.workloads {
		for _, proxy := range programs()[0].proxies {
			if d, e := t.cost(of, proxy, result.AsksProxy); e != nil && d.reach() > widestLevel {
				return false
			}
			d, e := t.cost(of, proxy, result.AsksService)
			much = much || e != nil && math.Abs(d.ratio-1) > muchMore
		}
	}
	return much
}

// costSentence tells both costs of a program on a link; empty if neither is known.
func (st *suiteTables) costSentence(of link, p program) string {
	known := st.proxies(of)
	missing := func(proxy string) bool { return !slices.Contains(known, proxy) }
	proxies := slices.DeleteFunc(slices.Clone(p.proxies), missing)
	if len(proxies) == 0 {
		return ""
	}
	name := p.name
	if len(p.proxies) > 1 && len(proxies) == 1 {
		name += " (" + format.Via(proxies[0]) + ")"
	}
	w := st.workloads[0].wording
	slows, speeds := "slows all pod traffic", "speeds up all pod traffic"
	if w.counted {
		slows, speeds = "adds instructions to all pod traffic", "saves all pod traffic instructions"
	}
	services := [4]string{"costs Services ", "costs Services: ", "saves Services: ", "changes Services: "}
	all := st.clause(clause{of, proxies, result.AsksProxy, true},
		[4]string{"costs all pod traffic ", slows + ": ", speeds + ": ", "changes all pod traffic: "})
	if all != "" {
		services = [4]string{"Services cost on top ", "Services cost on top: ", "Services save: ", "Services on top: "}
	}
	service := st.clause(clause{of, proxies, result.AsksService, all == ""}, services)
	if service == "" && all == "" { // of files that know the sum alone
		service = st.clause(clause{of, proxies, result.AsksTotal, true}, services)
	}
	parts := slices.DeleteFunc([]string{all, service}, func(s string) bool { return s == "" })
	if len(parts) == 0 {
		return ""
	}
	return "On " + st.linkName(of) + ", " + name + " " + strings.Join(parts, ". ") + "."
}

// clause is one cost by workload. Names asks for those of the proxies at the first.
type clause struct {
	of       link
	proxies  []string
	question string
	names    bool
}

// clause puts one cost in words: begins[0] goes before nothing, [1] before costs, [2] before gains, [3] before both.
func (st *suiteTables) clause(c clause, begins [4]string) string {
	type found struct {
		workload string
		values   []difference
		proxies  []string
	}
	var all, nothing []found
	costs, gains, within := 0, 0, 0.0
	for _, t := range st.workloads {
		f, some, reach := found{workload: t.plural()}, false, 0.0
		for _, proxy := range c.proxies {
			d, e := t.cost(c.of, proxy, c.question)
			if e == nil {
				continue
			}
			f.values, f.proxies = append(f.values, d), append(f.proxies, proxy)
			reach = max(reach, d.reach())
			if d.verdict == tied {
				continue
			}
			some = true
			if (d.ratio < 1) != t.wording.less {
				costs++
			} else {
				gains++
			}
		}
		switch {
		case len(f.values) == 0:
		case some:
			all = append(all, f)
		default:
			nothing, within = append(nothing, f), max(within, reach)
		}
	}
	if len(all)+len(nothing) == 0 {
		return ""
	}
	if len(all) == 0 {
		return begins[0] + none(within)
	}
	begin, mixed := begins[1], costs > 0 && gains > 0
	switch {
	case mixed:
		begin = begins[3]
	case gains > 0:
		begin = begins[2]
	}
	var parts []string
	for i, f := range all {
		var values []string
		for j, d := range f.values {
			text := st.value(d, mixed)
			if len(c.proxies) > 1 && (c.names && i == 0 || len(f.proxies) != len(c.proxies)) {
				text += " (" + format.Via(f.proxies[j]) + ")"
			}
			values = append(values, text)
		}
		parts = append(parts, f.workload+" "+strings.Join(values, " or "))
	}
	if len(nothing) > 0 {
		var workloads []string
		for _, f := range nothing {
			workloads = append(workloads, f.workload)
		}
		parts = append(parts, format.List(workloads)+" "+none(within))
	}
	return begin + strings.Join(parts, ", ")
}

// none prints that no cost was found, with the bound on it.
func none(reach float64) string {
	if reach > widestLevel {
		return "nothing certain (" + inside(reach) + ")"
	}
	return "nothing (" + inside(reach) + ")"
}

// value prints one cost: its size, with its direction where others have the other one.
func (st *suiteTables) value(d difference, mixed bool) string {
	if d.verdict == tied {
		return none(d.reach())
	}
	text := share(d.ratio)
	if d.ci != nil && d.half() > math.Abs(d.ratio-1)/3 {
		text += "\u00a0±" + number(d.half())
	}
	if mixed {
		text = fmt.Sprintf("%s %s", text, map[bool]string{true: "less", false: "more"}[d.ratio < 1])
	}
	return text
}
