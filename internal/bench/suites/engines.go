// SPDX-License-Identifier: Apache-2.0

package suites

import (
	"fmt"
	"slices"
	"strings"

	"mustang/internal/bench/engine"
	"mustang/internal/result"
)

// Beside returns suites in which each path is followed by itself under each engine, with comparisons to the path.
// The workloads are the workloads that an engine carries. Suites without such a workload are left out. Beside
// returns an error if no suite remains.
func Beside(all []Suite, engines []engine.Engine) ([]Suite, error) {
	var out []Suite
	var names []string
	for _, e := range engines {
		names = append(names, e.Name)
	}
	list := strings.Join(names, ", ")
	for _, s := range all {
		if s = s.beside(engines); len(s.Workloads) > 0 {
			s.Report.Question = "Do the native engine and " + list + " agree?"
			out = append(out, s)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s: no workload of suite %s is one of its own", list, all[0].Name)
	}
	return out, nil
}

func (s Suite) beside(engines []engine.Engine) Suite {
	out := Suite{Name: s.Name, Doc: s.Doc, Report: result.Suite{Answer: []string{result.AnswerStatements}}}
	for _, w := range s.Workloads {
		carries := func(e engine.Engine) bool { return e.Runs(w.Name, w.Flows) }
		if !s.CallsPlugins() && slices.ContainsFunc(engines, carries) {
			out.Workloads = append(out.Workloads, w)
		}
	}
	against := make([]result.Statement, len(engines))
	for i, e := range engines {
		against[i] = result.Statement{Caption: e.Name + " against native", Subject: "by " + e.Name,
			Object: "by the native engine"}
	}
	for _, p := range s.Paths {
		if p.Repeats != "" {
			continue
		}
		out.add(p)
		for i, e := range engines {
			by := p
			by.ID, by.Label, by.Engine = p.ID+"/"+e.Name, p.ID+"/"+e.Name, &e
			out.add(by)
			out.Pairs = append(out.Pairs, Pair{Name: p.ID + ": " + e.Name + " / native", Numerator: by.ID, Denominator: p.ID})
			against[i].Pairs = append(against[i].Pairs, pairOf(by.ID, p.ID, p.ID))
		}
	}
	out.Report.Statements = against
	return out
}

// BesideEngines reports whether paths are measured by further engines.
func (s Suite) BesideEngines() bool {
	return slices.ContainsFunc(s.Paths, func(p Path) bool { return p.Engine != nil })
}

// Has reports whether the suite has a row of a path under a workload. An engine may not carry the workload, and a
// path may have one workload only.
func (s Suite) Has(p Path, w Workload) bool {
	return (p.Engine == nil || p.Engine.Runs(w.Name, w.Flows)) && (p.Workload == "" || p.Workload == w.Name) &&
		(!w.OfTables() || p.hasTable(w))
}
