// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"mustang/internal/result"
)

type suite struct {
	result.Suite
	anchor    string
	run       run
	rows      []result.Row
	groupOf   map[string]string // row ID to the caption of its group
	seriesOf  map[string]Legend // row ID to its series
	workloads []*workload
	traces    []result.Trace
}

// workload holds the rows of one suite, workload and number of flows.
type workload struct {
	result.Key  // without ID
	suite       *suite
	names       workloadNames
	anchor      string
	name        string // short title
	explanation string // of the title
	unit        string
	cpuUnit     string
	better      better
	entries     []*entry
	byID        map[string]*entry
	reference   *entry // the row that all others are compared with, nil if there is none
	comparisons []result.Comparison
	pairs       map[[2]string]result.Comparison // by numerator and denominator
	priced      map[costKey]result.Comparison   // of service proxies
	contest     []contender                     // the rows that may be the best, in the order of their ratios
	rival       *entry                          // the row of the contest that its ratios are to
}

type entry struct {
	result.Row
	name   string  // of its connection
	repeat bool    // whether it measures another row again
	figure float64 // the median; in a contest of links the best link's median times the ratio
}

// better is which figures are better, and the words for it.
type better struct {
	less    bool   // whether less is better
	best    string // of the best of several
	extreme string // where the best figure lies
}

var safeAnchor = regexp.MustCompile(`^[a-z][a-z0-9-]{0,30}$`) // matches suite names that can be anchors

func newSuites(f result.File) (out []*suite) {
	for _, s := range f.Suites {
		rows := filter(f.Rows, func(r result.Row) bool { return r.Suite == s.Name })
		if len(rows) == 0 {
			continue
		}
		st := &suite{Suite: s, anchor: fmt.Sprintf("suite-%d", len(out)+1), run: run{f.Run, f.Rows}, rows: rows,
			traces:  filter(f.Run.Traces, func(t result.Trace) bool { return t.Suite == s.Name }),
			groupOf: map[string]string{}, seriesOf: map[string]Legend{}}
		if safeAnchor.MatchString(s.Name) && !strings.HasPrefix(s.Name, "suite-") {
			st.anchor = s.Name
		}
		for _, g := range slices.Backward(s.Groups) {
			for _, id := range g.Rows {
				st.groupOf[id] = g.Caption
			}
		}
		for _, series := range slices.Backward(s.Series) {
			for _, id := range series.Rows {
				st.seriesOf[id] = Legend{Color: series.Color, Name: series.Name}
			}
		}
		st.addWorkloads(f.Run.Comparisons)
		out = append(out, st)
	}
	return out
}

func (st *suite) addWorkloads(comparisons []result.Comparison) {
	var keys []result.Key // without an ID
	rows := map[result.Key][]result.Row{}
	for _, row := range st.rows {
		k := row.Key()
		if k.ID = ""; rows[k] == nil {
			keys = append(keys, k)
		}
		rows[k] = append(rows[k], row)
	}
	order := map[[2]string]int{} // of links, and links with a variant: by the rows that first name them
	for i, row := range slices.Backward(st.rows) {
		order[[2]string{row.Link}], order[[2]string{row.Link, "\x00" + row.Variant}] = i, i
	}
	for _, names := range allWorkloads(st.run.Counted()) {
		all := filter(keys, func(k result.Key) bool { return k.Workload == names.Name })
		slices.SortStableFunc(all, func(a, b result.Key) int { return cmp.Compare(a.Flows, b.Flows) })
		for i, k := range all {
			t := &workload{Key: k, suite: st, names: names, anchor: fmt.Sprintf("%s-%s-%d", st.anchor, k.Workload, k.Flows)}
			if k.Setup != (result.Setup{}) {
				t.anchor += fmt.Sprintf("-%d", i)
			}
			t.comparisons = filter(comparisons, func(c result.Comparison) bool {
				return result.Key{Suite: c.Suite, Workload: c.Workload, Flows: max(c.Flows, 1), Setup: c.Setup} == k
			})
			t.fill(rows[k], order)
			t.nameIt(all[0].Flows != all[len(all)-1].Flows)
			st.workloads = append(st.workloads, t)
		}
	}
}

func (st *suite) list() bool { return st.Layout == result.LayoutList }

func (t *workload) fill(rows []result.Row, order map[[2]string]int) {
	t.pairs, t.priced, t.byID = map[[2]string]result.Comparison{}, map[costKey]result.Comparison{}, map[string]*entry{}
	t.better = t.betterFigures()
	for _, c := range slices.Backward(t.comparisons) {
		if c.RoundsDone() > 0 {
			t.pairs[[2]string{c.Numerator, c.Denominator}] = c
		}
	}
	for _, row := range rows {
		e := &entry{Row: row, name: connectionName(row), repeat: row.Repeats != "", figure: row.Median}
		if t.suite.list() {
			e.name = spelt(cmp.Or(row.Label, row.Repeats, row.ID))
		}
		if e.repeat {
			e.name += " (again)"
		}
		t.unit, t.cpuUnit = cmp.Or(t.unit, row.Unit), cmp.Or(t.cpuUnit, row.CPUUnit)
		t.entries, t.byID[row.ID] = append(t.entries, e), e
	}
	t.sort(order)
	if t.suite.list() {
		t.reference = t.byID[t.suite.Reference]
	} else {
		for _, c := range slices.Backward(t.comparisons) {
			if n := t.byID[c.Numerator]; n != nil && c.Ratio > 0 && c.RoundsDone() > 0 {
				t.priced[costKey{n.link(), n.Proxy, c.Asks}] = c
			}
		}
	}
	t.contest = t.newContest()
}

// sort leaves a list in the file's order but for repeated rows, which go last. In a matrix baselines are first;
// within a link the kernel's datapath is before eBPF and the pod IP before the cluster IP.
func (t *workload) sort(order map[[2]string]int) {
	number := map[bool]int{true: 1}
	targets := []string{result.TargetLoopback, result.TargetHostIP, result.TargetPodIP, result.TargetClusterIP,
		result.TargetPublishedPort}
	place := func(e *entry) []int {
		if t.suite.list() {
			return []int{number[e.repeat]}
		}
		return []int{
			-number[e.Baseline], number[e.repeat], order[[2]string{e.Link}], order[[2]string{e.Link, "\x00" + e.Variant}],
			number[e.Datapath == result.DatapathEBPF], number[e.Placement == result.PlacementTwoHosts],
			number[e.Overlay == result.OverlayVXLAN], number[e.Family == "ipv6"],
			slices.Index(targets, e.Target), viaIndex(e.Via),
		}
	}
	slices.SortStableFunc(t.entries, func(a, b *entry) int { return slices.Compare(place(a), place(b)) })
}

func (e *entry) ok() bool { return e.Status == result.StatusOK }

func (t *workload) measured() []*entry {
	return filter(t.entries, func(e *entry) bool { return !e.repeat && e.ok() })
}

func (t *workload) compareFigures(a, b float64) int {
	if t.better.less {
		return cmp.Compare(a, b)
	}
	return cmp.Compare(b, a)
}

func (t *workload) ranked(entries []*entry) []*entry {
	return slices.SortedStableFunc(slices.Values(entries), func(a, b *entry) int {
		return t.compareFigures(a.Median, b.Median)
	})
}

func (t *workload) nameIt(several bool) {
	t.name, t.explanation = t.names.Title, t.names.Explanation
	switch {
	case t.calls() && t.Flows == 1:
		t.name += ", one at a time"
	case t.calls():
		t.name += fmt.Sprintf(", %d at once", t.Flows)
	case t.Flows > 1 || several:
		t.name += ", " + countOf(t.Flows, t.names.Flow)
		if strings.HasSuffix(t.Workload, "_stream") && !t.suite.run.Counted() {
			t.explanation = ""
		}
	}
	if setup := t.Setup.String(); setup != "" {
		t.name, t.explanation = t.name+", "+setup, ""
	}
	if t.Setup.Paced() {
		t.explanation = "latency of requests at a fixed rate, from the time at which each was due"
	}
}

func (t *workload) heading() string {
	if t.explanation == "" {
		return t.name
	}
	return t.name + " (" + t.explanation + ")"
}

func (t *workload) turns() bool {
	return slices.ContainsFunc(t.entries, func(e *entry) bool { return len(e.Positions) > 0 })
}

func (t *workload) calls() bool { return strings.HasPrefix(t.Workload, "cni_") }

// meanLatency is the mean time of a transaction in µs, since each flow has one at a time; 0 for other units.
func (t *workload) meanLatency(e *entry, figure float64) float64 {
	if e.Unit != result.UnitTransactions || figure <= 0 {
		return 0
	}
	return float64(t.Flows) * 1e6 / figure
}

// betterFigures returns which figures are better: rates of a timed run; fewer instructions, memory and times.
func (t *workload) betterFigures() better {
	switch {
	case t.suite.run.Counted():
		return better{true, "takes the fewest instructions", "lowest"}
	case t.Setup.Paced():
		return better{true, "has the lowest latency", "lowest"}
	case t.Workload == result.WorkloadServiceMemory:
		return better{true, "takes the least memory", "lowest"}
	case t.calls(), strings.HasPrefix(t.Workload, result.WorkloadFirstPacket), strings.HasSuffix(t.Workload, "_change"),
		t.Workload == result.WorkloadPolicyApply:
		return better{true, "is the fastest", "lowest"}
	}
	return better{false, "is the fastest", "highest"}
}
