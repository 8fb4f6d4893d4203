// SPDX-License-Identifier: Apache-2.0

package result

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode"
)

// maxSeed is the largest whole number that every JSON reader holds exactly.
const maxSeed = 1<<53 - 1

// Validate checks that f is of this schema, that its rows are unique and carry only
// values that the schema names, that every figure is a finite number below 1e15,
// and none of a row's samples below 0,
// that an interval encloses its median, that no counted row stands beside a timed
// one, and that no list, name or text exceeds its limit. It returns the first ten
// faults in an error of one line.
func (f File) Validate() error {
	if f.Schema != Schema {
		return &SchemaError{Schema: f.Schema}
	}
	var p faults
	p.at = "run"
	p.run(f.Run)
	p.at = "file"
	for _, list := range []struct {
		name   string
		length int
	}{{"suites", len(f.Suites)}, {"rows", len(f.Rows)}, {"comparisons", len(f.Run.Comparisons)},
		{"traces", len(f.Run.Traces)}} {
		p.most(list.name, list.length, maxLengths[list.name])
	}
	suites := map[string]bool{}
	for _, s := range f.Suites {
		p.at = fmt.Sprintf("suite %q", clip(s.Name))
		p.suite(s)
		p.check(suites[s.Name], "appears twice")
		suites[s.Name] = true
	}
	seen, workloads, perSuite := map[Key]bool{}, map[Key]bool{}, map[string]int{}
	for i, row := range f.Rows {
		p.at = fmt.Sprintf("row %d (%s %s)", i, clip(row.ID), clip(row.Workload))
		p.row(row)
		p.clock(row, f.Run)
		k := row.Key()
		p.check(!suites[row.Suite], "suite %q is not in the file", row.Suite)
		p.check(seen[k], "appears twice")
		seen[k] = true
		if k.ID = ""; !workloads[k] {
			workloads[k] = true
			perSuite[k.Suite]++
			p.most("workloads and numbers of flows in its suite", perSuite[k.Suite], maxWorkloads)
		}
	}
	for _, t := range f.Run.Traces {
		p.at = fmt.Sprintf("trace of %s %s", clip(t.Suite), clip(t.ID))
		p.trace(t)
	}
	for _, c := range f.Run.Comparisons {
		p.at = fmt.Sprintf("comparison %q (%s)", clip(c.Name), clip(c.Workload))
		p.comparison(c)
		p.check(!suites[c.Suite], "suite %q is not in the file", c.Suite)
	}
	return p.err()
}

// faults gathers the faults of a file.
type faults struct {
	at   string // the part of the file that is checked; empty for the whole
	list []string
	more int
}

// check adds a fault if something is wrong. Texts of the file are clipped.
func (p *faults) check(wrong bool, format string, args ...any) {
	switch {
	case !wrong:
		return
	case len(p.list) == 10:
		p.more++
		return
	}
	for i, arg := range args {
		if text, ok := arg.(string); ok {
			args[i] = clip(text)
		}
	}
	text := fmt.Sprintf(format, args...)
	if p.at != "" {
		text = p.at + ": " + text
	}
	p.list = append(p.list, text)
}

// oneOf checks that a field has one of its values.
func (p *faults) oneOf(field, value string, allowed ...string) {
	if !slices.Contains(allowed, value) {
		p.check(true, "%s %q is none of "+strings.Join(allowed, ", "), field, value)
	}
}

// most checks a number, and reports whether it is within its limit.
func (p *faults) most(what string, n, most int) bool {
	p.check(n > most, "%d %s, the most is %d", n, what, most)
	return n <= most
}

func (p *faults) err() error {
	switch {
	case len(p.list) == 0:
		return nil
	case p.more > 0:
		return fmt.Errorf("%s; and %d more", strings.Join(p.list, "; "), p.more)
	}
	return errors.New(strings.Join(p.list, "; "))
}

// clip shortens a string of a file for an error, and keeps it on one line.
func clip(s string) string {
	if len(s) > 100 {
		s = s[:100] + "..."
	}
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

func (p *faults) run(r Run) {
	p.check(r.Seed > maxSeed, "seed %d is above 2^53-1", r.Seed)
	p.check(r.Rounds < 0, "%d rounds", r.Rounds)
	if r.Clock != "" {
		p.oneOf("clock", r.Clock, ClockTime, ClockInstructions)
	}
	r.Comparisons, r.Traces = nil, nil // which have places of their own
	p.limits("run", reflect.ValueOf(r))
}

func (p *faults) suite(s Suite) {
	p.limits("suite", reflect.ValueOf(s))
	p.check(s.Name == "" || s.Question == "", "name and question must not be empty")
	p.oneOf("layout", s.Layout, LayoutMatrix, LayoutList)
	p.check(len(s.Answer) == 0, "answer must not be empty")
	for _, series := range s.Series {
		p.oneOf("color", series.Color, ColorGray, ColorSlate, ColorOrange, ColorPurple, ColorBlue, ColorTeal, ColorOlive)
	}
}

func (p *faults) row(r Row) {
	p.limits("row", reflect.ValueOf(r))
	p.oneOf("datapath", r.Datapath, DatapathKernel, DatapathEBPF)
	p.oneOf("placement", r.Placement, PlacementSameHost, PlacementTwoHosts)
	p.oneOf("overlay", r.Overlay, OverlayNone, OverlayVXLAN)
	p.oneOf("target", r.Target, TargetLoopback, TargetHostIP, TargetPodIP, TargetClusterIP, TargetPublishedPort,
		TargetNone)
	p.oneOf("via", r.Via, ViaNone, ViaIPTables, ViaNFTables, ViaIPVS, ViaEBPFTC, ViaEBPFSocket, ViaDocker)
	p.oneOf("workload", r.Workload, WorkloadTCPStream, WorkloadUDPStream, WorkloadTCPRR, WorkloadTCPCRR, WorkloadUDPRR,
		WorkloadCNIAdd,
		WorkloadCNIDel, WorkloadFirstPacket, WorkloadFirstPacketP99, WorkloadServiceProgram, WorkloadServiceChange,
		WorkloadServiceMemory,
		WorkloadPolicyApply, WorkloadPolicyChange)
	p.oneOf("status", r.Status, StatusOK, StatusSkipped, StatusFailed)
	p.oneOf("family", r.Family, "", "ipv4", "ipv6")
	p.check(r.ID == "" || r.Suite == "" || r.Link == "", "suite, id and link must be named")
	p.check(r.Status == StatusOK && len(r.Samples) == 0, "ok without a sample")
	p.check(r.Status == StatusOK && (r.Unit == "" || r.Engine == ""), "ok without unit or engine")
	p.check((r.Status == StatusSkipped || r.Status == StatusFailed) && r.Reason == "", "%s without a reason", r.Status)
	least := slices.Min(append([]float64{r.Median}, r.Samples...))
	p.check(least < 0, "figure %g is below 0", least)
	p.interval(len(r.Samples), r.Median, r.CI95)
	p.positions(r)
	p.check(r.Flows < 0, "%d flows", r.Flows)
	s := r.Setup
	p.check(s.RequestBytes < 0 || s.ResponseBytes < 0 || s.Rate < 0 || s.LoadShare < 0, "a negative figure in setup")
	p.check(r.LostShare < 0 || r.LostShare > 1, "lost_share %g is not from 0 to 1", r.LostShare)
	l := r.LatencyUS
	p.check(l != nil && !slices.IsSorted([]float64{l.P50, l.P90, l.P99, l.P999}),
		"latency_us does not rise with the percentile")
}

// positions checks the positions of a row's samples.
func (p *faults) positions(r Row) {
	n := 0
	for _, at := range r.Positions {
		if at.Count < 0 || at.Count > MaxSamples {
			p.check(true, "%d samples at a position", at.Count)
			return
		}
		n += max(at.Count, 1)
	}
	p.check(n > 0 && n != len(r.Samples), "%d positions of %d samples", n, len(r.Samples))
}

// clock checks that a row may stand in a file with the run's clock.
func (p *faults) clock(r Row, run Run) {
	counted := strings.HasPrefix(r.Unit, countedUnits)
	p.check(counted && !run.Counted(), "unit %q in a file of timed rows", r.Unit)
	p.check(r.Unit != "" && !counted && run.Counted(), "unit %q in a file of counted instructions", r.Unit)
	timed := r.LatencyUS != nil || r.CPUUSPerUnit != 0 || r.CPUSplit != nil || len(r.BPFNanos) > 0
	p.check(timed && run.Counted(), "a time in a file of counted instructions")
}

func (p *faults) trace(t Trace) {
	p.limits("trace", reflect.ValueOf(t))
	p.check(t.Alike < 0 || t.Alike > t.Transactions, "%d of %d transactions are alike", t.Alike, t.Transactions)
	for _, s := range t.Steps {
		p.check(s.Direction != directionRequest && s.Direction != directionReply, "direction %q is not known", s.Direction)
		p.check(min(s.Time, s.Low, s.High) < 0, "a step with a negative time")
	}
}

func (p *faults) comparison(c Comparison) {
	p.limits("comparison", reflect.ValueOf(c))
	p.check(c.Numerator == "" || c.Denominator == "", "numerator and denominator must be named")
	p.check(!slices.Contains([]string{"", VerdictLower, VerdictNone, VerdictHigher}, c.Verdict),
		"verdict %q is not known", c.Verdict)
	p.check(c.Rounds < 0 || c.Rounds > MaxSamples || c.Rounds > 0 && len(c.Ratios) > 0 && c.Rounds != len(c.Ratios),
		"%d rounds with %d ratios", c.Rounds, len(c.Ratios))
	p.interval(c.RoundsDone(), c.Ratio, c.CI95)
}

// interval checks a median of so many samples and its interval.
func (p *faults) interval(samples int, median float64, ci *[2]float64) {
	if ci != nil {
		p.check(samples < 6, "ci95 from %d samples, it takes 6", samples)
		p.check(ci[0] > median || median > ci[1], "median %g lies outside its ci95 [%g, %g]", median, ci[0], ci[1])
	}
}
