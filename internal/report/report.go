// SPDX-License-Identifier: Apache-2.0

// Package report turns a result file into a model of verdicts, tables, charts. It depends on no suite: questions,
// groups and captions come from the file.
//
// Every figure comes from the file. A difference that was not found has a bound: how far its 95 % interval reaches.
// Under six rounds the report claims nothing.
package report

import (
	"fmt"
	"reflect"

	"mustang/internal/result"
)

// Report is a result file in the order in which readers see it. Its strings are free of control characters.
type Report struct {
	Title             string   // the name of the suite that ran
	Headline, Machine string   // the run and the machine in one line; the machine
	Started, Stamp    string   // the time of the start, empty if unknown; the same in names of files
	Warnings          []string // to be read before the figures
	Disturbances      string   // what took CPU time of the run
	Suites            []Suite
	Facts             []group // on machine, settings and method
	Command           string  // repeats the run
}

// Suite is the part of a report that answers one question.
type Suite struct {
	Name, Question string
	Anchor         string // unique in the report and safe in a URL
	Workloads      []Workload
	Notes          []string // remarks on the rows
	Key            []Legend // the series of rows
	Counted        bool     // whether figures are instructions
	Turns          bool     // whether rows took turns
	LeftIsBetter   bool     // in charts
	Failures       []Failure
	Traces         []Path // the steps of the packets of some rows
	Brief          Brief  // the answer
}

// Workload is all that a suite's rows show under one workload.
type Workload struct {
	Name, Heading    string // the short title; the title with an explanation
	Forest, Services Figure // draw the verdict, and what Services cost
	Grid             *Table // a line for each group and a column for each series; nil if the suite has neither
	Paths            *Table // devices and netfilter hooks that packets of each row pass; nil if not to be shown
	Rows             Table  // a line for each row
	Costs            *Table // the parts of the rows' CPU time; nil if unknown
	Comparisons      *Table // a line for each comparison; nil without comparisons
	Evidence         Table  // the counts taken while each row ran
}

// Brief is a suite's answer: a verdict for each workload, and tables with the figures.
type Brief struct {
	Sentences   []string // the verdicts, and how certain they are
	Tables      []Table  // the figures of the rows, the best first; of links also what Services cost
	NotMeasured string   // the rows that were not measured by reason, empty if all were
	Failed      []string // a line for each reason
}

// Failure is a reason why figures of rows are missing.
type Failure struct {
	Status string // "failed" or "skipped"
	Rows   string // the rows' names
	Reason string
}

// New makes the report of f. A file that [result.File.Validate] refuses gives its error.
func New(f result.File) (*Report, error) {
	if err := f.Validate(); err != nil {
		return nil, fmt.Errorf("check results: %w", err)
	}
	f = cleaned(reflect.ValueOf(f)).Interface().(result.File)
	run := run{f.Run, f.Rows}
	r := &Report{
		Title: run.Suite, Headline: run.headline(), Machine: run.machineLine(), Started: timestamp(run.Started),
		Warnings: run.warnings(), Disturbances: run.disturbances(), Command: run.command(),
		Facts: []group{{"Placement", run.placement()}, {"Machine", run.machine()}, {"Settings", factsOf(run.Settings)},
			{"Offloads", factsOf(run.Offloads)}, {"Method", run.method()}},
		Suites: convert(newSuites(f), (*suite).suite),
	}
	if len(r.Suites) != 1 && r.Disturbances != "" { // which hold for all
		r.Warnings, r.Disturbances = append(r.Warnings, r.Disturbances), ""
	}
	if !run.Started.IsZero() {
		r.Stamp = run.Started.UTC().Format("20060102T150405Z")
	}
	return r, nil
}

func (st *suite) suite() Suite {
	out := Suite{
		Name: st.Name, Question: st.Question, Anchor: st.anchor, Key: st.key(), Failures: st.failures(),
		Notes: st.Notes, Brief: st.brief(),
		Counted: st.run.Counted(), Turns: st.workloads[0].turns(),
		LeftIsBetter: st.workloads[0].better.less || st.workloads[0].inTime(),
		Traces:       convert(st.traces, func(t result.Trace) Path { return NewPath(t.ID, t, "ns") }),
	}
	for _, t := range st.workloads {
		w := Workload{
			Name: t.name, Heading: t.heading(), Paths: t.paths(), Rows: t.rowTable(), Costs: t.cpuTable(),
			Comparisons: t.comparisonTable(), Evidence: t.evidence(), Forest: t.chart(), Services: t.costChart(),
		}
		if st.grid() {
			w.Grid = t.gridTable()
		}
		out.Workloads = append(out.Workloads, w)
	}
	return out
}
