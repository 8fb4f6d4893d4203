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

// cost returns the difference that answers a question on a link and a service proxy, and the numerator's row; nil
// without a figure.
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

// links lists the links of pods with a figure, in the file's order.
func (st *suiteTables) links() []link {
	var out []link
	for _, t := range st.workloads {
		for _, e := range t.entries {
			ofPods := e.ok() && !e.Baseline && (e.Target == result.TargetPodIP || e.Target == result.TargetClusterIP)
			if ofPods && !slices.Contains(out, e.link()) {
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
			if e.link() == of && !e.BigTCP && !e.Baseline {
				return strings.Replace(e.name, "+eBPF", "", 1)
			}
		}
	}
	return format.Clean(of.mode)
}

// muchMore is the cost of a Service by kube-proxy from which a second link has sentences.
const muchMore = 0.1

// costSentences tell what each service proxy costs all traffic, and what a Service costs on top: on the link with the
// most proxies, and on the fastest other link where kube-proxy costs Services much.
func (st *suiteTables) costSentences() []string {
	links := st.links()
	if len(links) == 0 {
		return nil
	}
	main := slices.MaxFunc(links, func(a, b link) int { return cmp.Compare(len(st.proxies(a)), len(st.proxies(b))) })
	told := []link{main}
	for _, of := range st.linkOrder() {
		if of != main && len(told) == 1 && st.costsServicesMuch(of) {
			told = append(told, of)
		}
	}
	var out []string
	for _, of := range told {
		for _, p := range programs()[:2] {
			for _, proxy := range p.proxies {
				out = append(out, st.costSentence(of, p, proxy))
			}
		}
	}
	return out
}

// costsServicesMuch reports whether kube-proxy costs Services of a link much in a workload.
func (st *suiteTables) costsServicesMuch(of link) bool {
	for _, t := range st.workloads {
		for _, proxy := range programs()[0].proxies {
			d, e := t.cost(of, proxy, result.AsksService)
			if e != nil && d.verdict != tied && math.Abs(d.ratio-1) > muchMore {
				return true
			}
		}
	}
	return false
}

// costSentence tells both costs of a proxy of a program on a link; empty if neither is known.
func (st *suiteTables) costSentence(of link, p program, proxy string) string {
	name := p.name
	if len(p.proxies) > 1 {
		name += " with " + format.Via(proxy)
	}
	slows, speeds := "slows all pod traffic", "speeds up all pod traffic"
	if st.workloads[0].wording.counted {
		slows, speeds = "adds instructions to all pod traffic", "saves all pod traffic instructions"
	}
	all := st.clause(of, proxy, result.AsksProxy,
		[4]string{"costs all pod traffic ", slows + ": ", speeds + ": ", "changes all pod traffic: "})
	top := [4]string{"Services cost on top ", "Services cost on top: ", "Services save: ", "Services on top: "}
	if all == "" {
		top = [4]string{"costs Services ", "costs Services: ", "saves Services: ", "changes Services: "}
	}
	service := st.clause(of, proxy, result.AsksService, top)
	if service == "" && all == "" { // of runs that know the sum alone
		service = st.clause(of, proxy, result.AsksTotal, top)
	}
	parts := slices.DeleteFunc([]string{all, service}, func(s string) bool { return s == "" })
	if len(parts) == 0 {
		return ""
	}
	return "On " + st.linkName(of) + ", " + name + " " + strings.Join(parts, ". ") + "."
}

// little is the cost below which a sentence does not say that traffic is slowed or sped up.
const little = 0.01

// clause puts one cost in words, workload by workload: begins[0] goes before nothing, [1] before costs, [2] before
// gains, [3] before both and before little.
func (st *suiteTables) clause(of link, proxy, question string, begins [4]string) string {
	type found struct {
		workload string
		difference
	}
	var all []found
	costs, gains, within, most := 0, 0, 0.0, 0.0
	for _, t := range st.workloads {
		d, e := t.cost(of, proxy, question)
		if e == nil {
			continue
		}
		all = append(all, found{t.plural(), d})
		if d.verdict == tied || d.ci == nil {
			within = max(within, d.reach())
			continue
		}
		most = max(most, math.Abs(d.ratio-1))
		if (d.ratio < 1) != t.wording.less {
			costs++
		} else {
			gains++
		}
	}
	begin, mixed := begins[1], costs > 0 && gains > 0 || costs+gains > 0 && most < little
	switch {
	case len(all) == 0:
		return ""
	case costs+gains == 0 && within <= widestLevel:
		return begins[0] + none(within)
	case costs+gains == 0:
		begin = strings.TrimSpace(begins[0]) + ": "
	case mixed:
		begin = begins[3]
	case gains > 0:
		begin = begins[2]
	}
	var parts []string
	for _, f := range all {
		parts = append(parts, f.workload+" "+st.value(f.difference, mixed))
	}
	return begin + strings.Join(parts, ", ")
}

// none prints that no cost was found, with the bound on it.
func none(reach float64) string {
	if reach > widestLevel {
		return "not certain (" + inside(reach) + ")"
	}
	return "nothing (" + inside(reach) + ")"
}

// value prints one cost: its size, with its direction where others have the other one.
func (st *suiteTables) value(d difference, mixed bool) string {
	switch {
	case d.ci == nil:
		return "not certain"
	case d.verdict == tied && d.apart():
		return d.span() + " (not certain)"
	case d.verdict == tied:
		return none(d.reach())
	}
	text := shareWithHalf(d)
	if mixed {
		text = fmt.Sprintf("%s %s", text, map[bool]string{true: "less", false: "more"}[d.ratio < 1])
	}
	return text
}
