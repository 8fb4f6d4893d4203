// SPDX-License-Identifier: Apache-2.0

package report

import (
	"slices"
	"strings"

	"mustang/internal/result"
)

// overview is the summary of a suite whose rows are named by their IDs: a line for
// each way, with its figures under all workloads.
type overview struct {
	columns []column
	entries []*entry // one of each way, in the lines' order
	notes   []string
}

// overview makes the summary.
func (su *suite) overview() overview {
	var o overview
	var skipped []string
	for _, e := range su.ways() {
		if su.skipped(e.ID) {
			skipped = append(skipped, e.connection)
			continue
		}
		o.entries = append(o.entries, e)
	}
	if len(o.entries) == 0 { // all of them: better a table of it than none
		o.entries, skipped = su.ways(), nil
	}
	way := column{head: []string{"", "way"}}
	for _, e := range o.entries {
		way.cells = append(way.cells, e.connection)
	}
	o.columns = []column{way}
	marks := map[verdict]bool{}
	for i, s := range su.sets {
		for _, c := range s.summaryColumns(i, len(su.sets) == 1) {
			o.columns = append(o.columns, s.arranged(c, o.entries))
		}
		if s.reference != nil {
			for v := range s.marks() {
				marks[v] = true
			}
		}
	}
	if legend := marksLegend(marks); legend != "" {
		o.notes = append(o.notes, legend)
	}
	if slices.ContainsFunc(su.sets, func(s *set) bool { return s.lostShare().cells != nil }) {
		o.notes = append(o.notes, "Of UDP streams the rate is the one that arrived.")
	}
	if slices.ContainsFunc(o.entries, func(e *entry) bool { return strings.Contains(e.Variant, userSpace) }) {
		o.notes = append(o.notes, "Open vSwitch forwarded in user space: the datapath in the kernel was not there.")
	}
	for _, mark := range []string{"tcg", "kvm"} {
		if slices.ContainsFunc(o.entries, func(e *entry) bool { return e.guestMark() == " ("+mark+")" }) {
			o.notes = append(o.notes, guestWords(mark))
		}
	}
	if len(skipped) > 0 {
		o.notes = append(o.notes, "Skipped: "+strings.Join(skipped, ", ")+".")
	}
	return o
}

// ways lists one entry of each way, without second measurements; those of a
// ranking by their place in it.
func (su *suite) ways() []*entry {
	var out []*entry
	add := func(entries []*entry) {
		for _, e := range entries {
			if !e.repeat && !slices.ContainsFunc(out, func(other *entry) bool { return other.ID == e.ID }) {
				out = append(out, e)
			}
		}
	}
	if su.name == suiteInterfaces && len(su.sets) > 0 {
		add(su.sets[0].ranked())
	}
	for _, s := range su.sets {
		add(s.entries)
	}
	return out
}

// skipped says that the way was skipped under all workloads.
func (su *suite) skipped(id string) bool {
	for _, s := range su.sets {
		if e := s.entry(id); e != nil && e.Status != result.StatusSkipped {
			return false
		}
	}
	return true
}

// summaryColumns are a set's columns in the summary, where it may be the only one.
// The columns of the first sets are the last to be left out.
func (s *set) summaryColumns(place int, only bool) []column {
	rate := s.rate()
	rate[1].rank = 3
	out := rate
	if !only {
		out = rate[:1]
		out[0].head = []string{s.short, shortUnit(s.unit)}
	}
	lost := s.lostShare()
	lost.head, lost.rank = []string{"lost of", strings.TrimSuffix(strings.TrimSuffix(s.short, "s"), " stream")}, 2+place
	out = append(out, s.meanOf(only), s.referenceColumn(2+place), lost)
	if only && s.suite == suiteLatency {
		interval := s.text(5, s.referenceInterval, "95 % interval", "of it")
		out = append(out, interval)
		out = append(out, s.percentiles(false)...)
	}
	for i := range out {
		out[i].right = true
	}
	return slices.DeleteFunc(out, func(c column) bool { return c.cells == nil })
}

// meanOf is the column of mean times, of a suite that is about them.
func (s *set) meanOf(only bool) column {
	if !only && s.suite != suiteLatency {
		return column{}
	}
	return s.meanColumn(1)
}

// arranged puts a set's column in the order of entries, which may be of another
// set; the set's rates say what became of those without a figure.
func (s *set) arranged(c column, entries []*entry) column {
	cells := make([]string, len(entries))
	for i, e := range entries {
		cells[i] = none
		if strings.HasSuffix(at(c.head, 0), " ") {
			cells[i] += " "
		}
		for j, mine := range s.entries {
			if mine.ID != e.ID || j >= len(c.cells) {
				continue
			}
			cells[i] = c.cells[j]
			if !mine.ok() && (c.title() == s.rate()[0].title() || at(c.head, 0) == s.short) {
				cells[i] = mine.Status
			}
		}
	}
	c.cells = cells
	return c
}
