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

// suiteTables holds a suite's rows, a table for each workload.
type suiteTables struct {
	result.Suite
	anchor    string
	counted   bool // instructions, not time
	run       run
	rows      []result.Row
	groupOf   map[string]string // row ID to the caption of its group
	seriesOf  map[string]Legend // row ID to its series
	workloads []*workloadTable
	traced    []result.Trace // of all suites
}

// workloadTable holds the rows of one suite, workload and number of flows.
type workloadTable struct {
	suite       *suiteTables
	anchor      string
	workload    string
	names       workloadNames
	flows       int
	setup       result.Setup
	name        string // short title
	explanation string // of the title
	unit        string
	cpuUnit     string
	wording     wording
	entries     []*entry
	byID        map[string]*entry
	reference   *entry // the row that all others are compared with, nil if there is none
	comparisons []result.Comparison
	pairs       map[[2]string]*result.Comparison // by numerator and denominator
	priced      map[costKey]result.Comparison    // of service proxies
	contest     []contender                      // the rows that may be the best, in the order of their ratios
	rival       *entry                           // the row of the contest that its ratios are to
}

// entry is a row with what belongs to it.
type entry struct {
	result.Row
	name   string  // of its connection
	repeat bool    // whether it measures another row again
	figure float64 // the median, or in a contest of links that of the best times their ratio
}

// safeAnchor matches suite names that can be anchors.
var safeAnchor = regexp.MustCompile(`^[a-z][a-z0-9-]{0,30}$`)

// newSuiteTables sorts f's rows into the suites that have rows, in the file's order.
func newSuiteTables(f result.File) []*suiteTables {
	rows := map[result.Key][]result.Row{} // keys have no ID
	variants := map[result.Key][]result.Key{}
	bySuite := map[string][]result.Row{}
	for _, row := range f.Rows {
		k := row.Key()
		k.ID = ""
		if rows[k] == nil {
			of := result.Key{Suite: k.Suite, Workload: k.Workload}
			variants[of] = append(variants[of], k)
		}
		rows[k] = append(rows[k], row)
		bySuite[row.Suite] = append(bySuite[row.Suite], row)
	}
	comparisons := map[result.Key][]result.Comparison{}
	for _, c := range f.Run.Comparisons {
		k := result.Key{Suite: c.Suite, Workload: c.Workload, Flows: max(c.Flows, 1), Setup: c.Setup}
		comparisons[k] = append(comparisons[k], c)
	}
	var out []*suiteTables
	for _, suite := range f.Suites {
		if len(bySuite[suite.Name]) == 0 {
			continue
		}
		st := &suiteTables{Suite: suite, anchor: fmt.Sprintf("suite-%d", len(out)+1), counted: f.Run.Counted(),
			run:  run{Run: f.Run, Rows: f.Rows},
			rows: bySuite[suite.Name], traced: f.Run.Traces}
		if safeAnchor.MatchString(suite.Name) && !strings.HasPrefix(suite.Name, "suite-") {
			st.anchor = suite.Name
		}
		st.index()
		order := st.connectionOrder()
		for _, names := range allWorkloads(st.counted) {
			all := variants[result.Key{Suite: suite.Name, Workload: names.Name}]
			slices.SortStableFunc(all, func(a, b result.Key) int { return cmp.Compare(a.Flows, b.Flows) })
			several := slices.ContainsFunc(all, func(k result.Key) bool { return k.Flows != all[0].Flows })
			for i, k := range all {
				t := &workloadTable{
					suite: st, workload: k.Workload, names: names, flows: k.Flows, setup: k.Setup, wording: wordingOf(st.counted, k),
					anchor: fmt.Sprintf("%s-%s-%d", st.anchor, k.Workload, k.Flows), comparisons: comparisons[k],
				}
				if k.Setup != (result.Setup{}) {
					t.anchor += fmt.Sprintf("-%d", i)
				}
				t.fill(rows[k], order)
				t.nameIt(several)
				st.workloads = append(st.workloads, t)
			}
		}
		out = append(out, st)
	}
	return out
}

// index finds the group and the series of each row ID.
func (st *suiteTables) index() {
	st.groupOf, st.seriesOf = map[string]string{}, map[string]Legend{}
	for _, g := range slices.Backward(st.Groups) {
		for _, id := range g.Rows {
			st.groupOf[id] = clean(g.Caption)
		}
	}
	for _, s := range slices.Backward(st.Series) {
		for _, id := range s.Rows {
			st.seriesOf[id] = Legend{Color: s.Color, Name: clean(s.Name)}
		}
	}
}

// list reports whether the suite has a line for each row ID, and not a matrix of
// connections.
func (st *suiteTables) list() bool { return st.Layout == result.LayoutList }

// connectionOrder numbers links, and links with a variant, in the order in which the
// rows first name them.
func (st *suiteTables) connectionOrder() map[[2]string]int {
	order := map[[2]string]int{}
	for i, row := range st.rows {
		for _, k := range [][2]string{{row.Link, ""}, {row.Link, "\x00" + row.Variant}} {
			if _, seen := order[k]; !seen {
				order[k] = i
			}
		}
	}
	return order
}

func (t *workloadTable) fill(rows []result.Row, order map[[2]string]int) {
	t.pairs, t.byID = map[[2]string]*result.Comparison{}, map[string]*entry{}
	again := map[string]bool{}
	for i, c := range t.comparisons {
		k := [2]string{c.Numerator, c.Denominator}
		if t.pairs[k] == nil && c.RoundsDone() > 0 {
			t.pairs[k] = &t.comparisons[i]
		}
		if c.AA && c.Numerator != c.Denominator {
			again[c.Numerator] = true
		}
	}
	for _, row := range rows {
		e := &entry{Row: row, name: connectionName(row), repeat: row.Repeats != "" || again[row.ID], figure: row.Median}
		if t.suite.list() {
			e.name = rowName(row)
		}
		if e.repeat {
			e.name += " (again)"
		}
		t.unit = cmp.Or(t.unit, clean(row.Unit))
		t.cpuUnit = cmp.Or(t.cpuUnit, clean(row.CPUUnit))
		t.entries, t.byID[row.ID] = append(t.entries, e), e
	}
	t.sort(order)
	if t.suite.list() {
		t.reference = t.byID[t.suite.Reference]
	} else {
		t.findCosts()
	}
	t.contest = t.newContest()
}

// sort leaves a list in the file's order but for repeated rows, which go last. In a
// matrix baselines are first; within a link the kernel's datapath is before eBPF
// and the pod IP before the cluster IP.
func (t *workloadTable) sort(order map[[2]string]int) {
	number := map[bool]int{true: 1}
	targets := []string{result.TargetLoopback, result.TargetHostIP, result.TargetPodIP, result.TargetClusterIP,
		result.TargetPublishedPort}
	place := func(e *entry) []int {
		if t.suite.list() {
			return []int{number[e.repeat]}
		}
		return []int{
			-number[e.Baseline], number[e.repeat],
			order[[2]string{e.Link, ""}], order[[2]string{e.Link, "\x00" + e.Variant}],
			number[e.Datapath == result.DatapathEBPF], number[e.Placement == result.PlacementTwoHosts],
			number[e.Overlay == result.OverlayVXLAN], number[e.Family == "ipv6"],
			slices.Index(targets, e.Target), slices.Index(viaOrder(), e.Via),
		}
	}
	slices.SortStableFunc(t.entries, func(a, b *entry) int { return slices.Compare(place(a), place(b)) })
}

func (e *entry) ok() bool { return e.Status == result.StatusOK }

// measured returns the entries that have a figure and repeat no other.
func (t *workloadTable) measured() []*entry {
	return slices.DeleteFunc(t.withoutRepeats(), func(e *entry) bool { return !e.ok() })
}

// withoutRepeats returns the entries that repeat no other.
func (t *workloadTable) withoutRepeats() []*entry {
	return slices.DeleteFunc(slices.Clone(t.entries), func(e *entry) bool { return e.repeat })
}

// ranked sorts entries by their medians, the best first.
func (t *workloadTable) ranked(entries []*entry) []*entry {
	out := slices.Clone(entries)
	slices.SortStableFunc(out, func(a, b *entry) int {
		if t.wording.less {
			return cmp.Compare(a.Median, b.Median)
		}
		return cmp.Compare(b.Median, a.Median)
	})
	return out
}

// nameIt names the table, with its number of flows if the suite has several, and its setup, if it is not the usual one.
func (t *workloadTable) nameIt(several bool) {
	t.name, t.explanation = t.names.Title, t.names.Explanation
	switch {
	case t.calls() && t.flows == 1:
		t.name += ", one at a time"
	case t.calls():
		t.name += fmt.Sprintf(", %d at once", t.flows)
	case t.flows > 1 || several:
		t.name += ", " + countOf(t.flows, t.names.Flow)
		if strings.HasSuffix(t.workload, "_stream") && !t.wording.counted {
			t.explanation = ""
		}
	}
	switch setup := t.setup.String(); {
	case setup == "":
	case t.setup.Paced():
		t.name, t.explanation = t.name+", "+setup, "latency of requests at a fixed rate, from the time at which each was due"
	default:
		t.name, t.explanation = t.name+", "+setup, ""
	}
}

func (t *workloadTable) heading() string {
	if t.explanation == "" {
		return t.name
	}
	return t.name + " (" + t.explanation + ")"
}

func (t *workloadTable) turns() bool {
	return slices.ContainsFunc(t.entries, func(e *entry) bool { return len(e.Positions) > 0 })
}

// calls reports whether the workload consists of calls of CNI plugins.
func (t *workloadTable) calls() bool { return strings.HasPrefix(t.workload, "cni_") }

// meanLatency is the mean time of a transaction in microseconds, since each flow has
// one at a time; 0 for other units.
func (t *workloadTable) meanLatency(e *entry) float64 {
	if e.Unit != result.UnitTransactions || e.Median <= 0 {
		return 0
	}
	return float64(t.flows) * 1e6 / e.Median
}

// wording tells which figures are better, and the words for it. Rates of a timed run
// are better the higher they are; counted instructions, memory and times, the lower.
type wording struct {
	counted bool
	less    bool   // whether less is better
	best    string // of the best of several
	extreme string // where the best figure lies
}

func wordingOf(counted bool, of result.Key) wording {
	switch {
	case counted:
		return wording{true, true, "takes the fewest instructions", "lowest"}
	case of.Setup.Paced():
		return wording{false, true, "has the lowest latency", "lowest"}
	case of.Workload == result.WorkloadServiceMemory:
		return wording{false, true, "takes the least memory", "lowest"}
	case strings.HasPrefix(of.Workload, "cni_"), strings.HasPrefix(of.Workload, result.WorkloadFirstPacket),
		strings.HasSuffix(of.Workload, "_change"), of.Workload == result.WorkloadPolicyApply:
		return wording{false, true, "is the fastest", "lowest"}
	}
	return wording{false, false, "is the fastest", "highest"}
}
