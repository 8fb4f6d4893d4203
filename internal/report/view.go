// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"mustang/internal/result"
)

// view is a result file in the order and grouping in which it is shown.
type view struct {
	file   result.File
	suites []*suite
	sets   []*set // of all suites
}

// set is what is known of one workload, with one number of flows, of one suite.
type set struct {
	suite       string
	anchor      string // unique in the page
	workload    string
	flows       int
	name, plain string
	short       string // for the heading of a column
	byID        bool   // IDs name the ways
	reference   *entry // what all others are held against, in suites that have one
	unit        string
	reading     reading
	cpuUnit     string
	entries     []*entry
	comparisons []result.Comparison
	spread      spread
}

// entry is a row with what belongs to it.
type entry struct {
	result.Row
	connection string
	baseline   bool
	repeat     bool               // the second measurement of an A/A pair
	cost       *result.Comparison // cluster IP over the pod IP of the same connection
}

// newView sorts f's rows into sets. The file itself is left as it is.
func newView(f result.File) *view {
	v := &view{file: f, suites: newSuites(f)}
	for _, su := range v.suites {
		for _, w := range workloadNames(f.Run.Counted()) {
			flows := flowsOf(f, su.name, w.workload)
			for _, n := range flows {
				s := v.newSet(su, n, w)
				s.nameFlows(w, len(flows) > 1)
				su.sets = append(su.sets, s)
			}
		}
		v.sets = append(v.sets, su.sets...)
	}
	return v
}

// flowsOf lists the numbers of flows that a suite has rows of under a workload.
func flowsOf(f result.File, suite, workload string) []int {
	var out []int
	for _, row := range f.Rows {
		if row.Suite == suite && row.Workload == workload && !slices.Contains(out, row.Key().Flows) {
			out = append(out, row.Key().Flows)
		}
	}
	slices.Sort(out)
	return out
}

// newSet gathers the rows of a suite that have a workload and a number of flows.
func (v *view) newSet(su *suite, flows int, w workloadName) *set {
	s := &set{suite: su.name, workload: w.workload, flows: flows, byID: namedByID(su.name), reading: readingOf(v.file.Run, w.workload),
		anchor: fmt.Sprintf("%s-%s-%d", su.anchor, w.workload, flows)}
	for _, c := range v.file.Run.Comparisons {
		if c.Workload == w.workload && max(c.Flows, 1) == flows && v.belongs(c, su.name) {
			s.comparisons = append(s.comparisons, c)
		}
	}
	for _, row := range v.file.Rows {
		if row.Suite == su.name && row.Workload == w.workload && row.Key().Flows == flows {
			s.add(row)
		}
	}
	s.spread = newSpread(s.comparisons)
	s.sort(v.file.Rows)
	s.setReference()
	s.linkCosts()
	return s
}

// add appends a row.
func (s *set) add(row result.Row) {
	e := &entry{Row: row, connection: connectionName(row), baseline: isBaseline(row), repeat: isRepeat(row)}
	if s.byID {
		e.connection, e.baseline = wayName(row), row.Link == "host" && !strings.HasPrefix(row.Variant, suiteDocker)
	}
	for _, c := range s.comparisons {
		e.repeat = e.repeat || c.AA && c.Numerator == row.ID && c.Numerator != c.Denominator
	}
	if e.repeat {
		e.connection += " (again)"
	}
	if s.unit == "" {
		s.unit = clean(row.Unit)
	}
	if s.cpuUnit == "" {
		s.cpuUnit = clean(row.CPUUnit)
	}
	s.entries = append(s.entries, e)
}

// sort puts baselines first, then links in the order in which the file first
// names them in the suite, and within a link the kernel's datapath before eBPF, the pod IP
// before the cluster IP, and repeated rows last.
func (s *set) sort(rows []result.Row) {
	if s.byID { // the suite's own order
		slices.SortStableFunc(s.entries, func(a, b *entry) int { return compareBool(a.repeat, b.repeat) })
		return
	}
	links := map[string]int{}
	for i, row := range rows {
		if row.Suite != s.suite {
			continue
		}
		for _, name := range []string{row.Link, row.Link + "\x00" + row.Variant} {
			if _, seen := links[name]; !seen {
				links[name] = i
			}
		}
	}
	targets := []string{result.TargetLoopback, result.TargetHostIP, result.TargetPodIP, result.TargetClusterIP, result.TargetPublishedPort}
	vias := viaOrder()
	slices.SortStableFunc(s.entries, func(a, b *entry) int {
		return cmp.Or(
			-compareBool(a.baseline, b.baseline),
			compareBool(a.repeat, b.repeat),
			cmp.Compare(links[a.Link], links[b.Link]),
			cmp.Compare(links[a.Link+"\x00"+a.Variant], links[b.Link+"\x00"+b.Variant]),
			compareBool(a.Datapath == result.DatapathEBPF, b.Datapath == result.DatapathEBPF),
			cmp.Compare(a.Placement, b.Placement),
			cmp.Compare(a.Overlay, b.Overlay),
			cmp.Compare(a.Family, b.Family),
			cmp.Compare(slices.Index(targets, a.Target), slices.Index(targets, b.Target)),
			cmp.Compare(slices.Index(vias, a.Via), slices.Index(vias, b.Via)),
		)
	})
}

// compareBool orders false before true.
func compareBool(a, b bool) int {
	if a == b {
		return 0
	}
	if b {
		return -1
	}
	return 1
}

// linkCosts finds for each cluster IP the comparison with the pod IP of the
// same connection.
func (s *set) linkCosts() {
	if s.byID {
		return
	}
	for _, e := range s.entries {
		if e.Target != result.TargetClusterIP && e.Target != result.TargetPublishedPort {
			continue
		}
		for _, pod := range s.entries {
			if pod.Target == result.TargetPodIP && !pod.repeat && pod.connection == e.connection && e.Status == result.StatusOK {
				e.cost = s.comparison(e.ID, pod.ID)
			}
		}
	}
}

// comparison finds the one of these two rows, or returns nil.
func (s *set) comparison(numerator, denominator string) *result.Comparison {
	for i, c := range s.comparisons {
		if c.Numerator == numerator && c.Denominator == denominator && len(c.Ratios) > 0 {
			return &s.comparisons[i]
		}
	}
	return nil
}

// ok says that the entry has a figure.
func (e *entry) ok() bool { return e.Status == result.StatusOK }

// measured returns the entries that have a figure and are not repeats.
func (s *set) measured() []*entry {
	var out []*entry
	for _, e := range s.entries {
		if e.ok() && !e.repeat {
			out = append(out, e)
		}
	}
	return out
}

// connections lists the names of the entries' connections in their order.
func connections(entries []*entry) []string {
	var out []string
	for _, e := range entries {
		if !slices.Contains(out, e.connection) {
			out = append(out, e.connection)
		}
	}
	return out
}

// roundsDone is the number of rounds that the best measured row has.
func (v *view) roundsDone() int {
	done := 0
	for _, row := range v.file.Rows {
		done = max(done, len(row.Samples))
	}
	return done
}
