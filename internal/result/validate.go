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
	var p problems
	p.add("run", f.Run.problems()...)
	alone := f.Run // its lists have places of their own
	alone.Comparisons, alone.Traces = nil, nil
	p.add("run", limits("run", reflect.ValueOf(alone))...)
	for _, list := range []struct {
		name   string
		length int
	}{{"suites", len(f.Suites)}, {"rows", len(f.Rows)}, {"comparisons", len(f.Run.Comparisons)}, {"traces", len(f.Run.Traces)}} {
		p.add("file", limit(list.name, list.length, maxLengths[list.name])...)
	}
	suites := map[string]bool{}
	for _, s := range f.Suites {
		name := fmt.Sprintf("suite %q", clip(s.Name))
		p.add(name, append(limits("suite", reflect.ValueOf(s)), s.problems()...)...)
		if suites[s.Name] {
			p.add(name, "appears twice")
		}
		suites[s.Name] = true
	}
	seen, workloads, perSuite := map[Key]bool{}, map[Key]bool{}, map[string]int{}
	for i, row := range f.Rows {
		name := fmt.Sprintf("row %d (%s %s)", i, clip(row.ID), clip(row.Workload))
		p.add(name, append(limits("row", reflect.ValueOf(row)), row.problems()...)...)
		k := row.Key()
		if !suites[row.Suite] {
			p.add(name, fmt.Sprintf("suite %q is not in the file", clip(row.Suite)))
		}
		if problem := row.mixed(f.Run); problem != "" {
			p.add(name, problem)
		}
		if seen[k] {
			p.add(name, "appears twice")
		}
		seen[k] = true
		if k.ID = ""; !workloads[k] {
			workloads[k] = true
			perSuite[k.Suite]++
			p.add(name, limit("workloads and numbers of flows in its suite", perSuite[k.Suite], maxWorkloads)...)
		}
	}
	for _, t := range f.Run.Traces {
		p.add(fmt.Sprintf("trace of %s %s", clip(t.Suite), clip(t.ID)), append(limits("trace", reflect.ValueOf(t)), t.problems()...)...)
	}
	for _, c := range f.Run.Comparisons {
		name := fmt.Sprintf("comparison %q (%s)", clip(c.Name), clip(c.Workload))
		p.add(name, append(limits("comparison", reflect.ValueOf(c)), c.problems()...)...)
		if !suites[c.Suite] {
			p.add(name, fmt.Sprintf("suite %q is not in the file", clip(c.Suite)))
		}
	}
	return p.err()
}

// problems gathers the faults of a file.
type problems struct {
	list []string
	more int
}

func (p *problems) add(name string, texts ...string) {
	for _, text := range texts {
		if len(p.list) == 10 {
			p.more++
			continue
		}
		p.list = append(p.list, name+": "+text)
	}
}

func (p *problems) err() error {
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

func (r Run) problems() []string {
	var out []string
	if r.Seed > maxSeed {
		out = append(out, fmt.Sprintf("seed %d is above 2^53-1", r.Seed))
	}
	if r.Rounds < 0 {
		out = append(out, fmt.Sprintf("%d rounds", r.Rounds))
	}
	if !slices.Contains([]string{"", ClockTime, ClockInstructions}, r.Clock) {
		out = append(out, fmt.Sprintf("clock %q is none of %s, %s", clip(r.Clock), ClockTime, ClockInstructions))
	}
	return out
}

func (r Row) problems() []string {
	var out []string
	for _, field := range []struct {
		name, value string
		allowed     []string
	}{
		{"datapath", r.Datapath, []string{DatapathKernel, DatapathEBPF}},
		{"placement", r.Placement, []string{PlacementSameHost, PlacementTwoHosts}},
		{"overlay", r.Overlay, []string{OverlayNone, OverlayVXLAN}},
		{"target", r.Target, []string{TargetLoopback, TargetHostIP, TargetPodIP, TargetClusterIP, TargetPublishedPort, TargetNone}},
		{"via", r.Via, []string{ViaNone, ViaIPTables, ViaNFTables, ViaIPVS, ViaEBPFTC, ViaEBPFSocket, ViaDocker}},
		{"workload", r.Workload, []string{
			WorkloadTCPStream, WorkloadUDPStream, WorkloadTCPRR, WorkloadTCPCRR, WorkloadUDPRR, WorkloadCNIAdd, WorkloadCNIDel,
			WorkloadFirstPacket, WorkloadFirstPacketP99, WorkloadServiceProgram, WorkloadServiceChange, WorkloadServiceMemory,
			WorkloadPolicyApply, WorkloadPolicyChange,
		}},
		{"status", r.Status, []string{StatusOK, StatusSkipped, StatusFailed}},
		{"family", r.Family, []string{"", "ipv4", "ipv6"}},
	} {
		if !slices.Contains(field.allowed, field.value) {
			out = append(out, fmt.Sprintf("%s %q is none of %s", field.name, clip(field.value), strings.Join(field.allowed, ", ")))
		}
	}
	if r.ID == "" || r.Suite == "" || r.Link == "" {
		out = append(out, "suite, id and link must be named")
	}
	switch r.Status {
	case StatusOK:
		if len(r.Samples) == 0 {
			out = append(out, "ok without a sample")
		}
		if r.Unit == "" || r.Engine == "" {
			out = append(out, "ok without unit or engine")
		}
	case StatusSkipped, StatusFailed:
		if r.Reason == "" {
			out = append(out, r.Status+" without a reason")
		}
	}
	if least := slices.Min(append([]float64{r.Median}, r.Samples...)); least < 0 {
		out = append(out, fmt.Sprintf("figure %g is below 0", least))
	}
	out = append(out, figures(len(r.Samples), r.Median, r.CI95)...)
	out = append(out, r.misplaced()...)
	if r.Flows < 0 {
		out = append(out, fmt.Sprintf("%d flows", r.Flows))
	}
	if s := r.Setup; s.RequestBytes < 0 || s.ResponseBytes < 0 || s.Rate < 0 || s.LoadShare < 0 {
		out = append(out, "a negative figure in setup")
	}
	if r.LostShare < 0 || r.LostShare > 1 {
		out = append(out, fmt.Sprintf("lost_share %g is not from 0 to 1", r.LostShare))
	}
	if l := r.LatencyUS; l != nil && !slices.IsSorted([]float64{l.P50, l.P90, l.P99, l.P999}) {
		out = append(out, "latency_us does not rise with the percentile")
	}
	return out
}

// mixed says why the row must not stand in a file with the run's clock; empty if it
// may.
func (r Row) mixed(run Run) string {
	counted := strings.HasPrefix(r.Unit, countedUnits)
	switch {
	case r.Unit == "" || counted == run.Counted():
	case counted:
		return fmt.Sprintf("unit %q in a file of timed rows", clip(r.Unit))
	default:
		return fmt.Sprintf("unit %q in a file of counted instructions", clip(r.Unit))
	}
	if run.Counted() && (r.LatencyUS != nil || r.CPUUSPerUnit != 0 || r.CPUSplit != nil || len(r.BPFNanos) > 0) {
		return "a time in a file of counted instructions"
	}
	return ""
}

func (c Comparison) problems() []string {
	var out []string
	if c.Numerator == "" || c.Denominator == "" {
		out = append(out, "numerator and denominator must be named")
	}
	if !slices.Contains([]string{"", VerdictLower, VerdictNone, VerdictHigher}, c.Verdict) {
		out = append(out, fmt.Sprintf("verdict %q is not known", clip(c.Verdict)))
	}
	if c.Rounds < 0 || c.Rounds > MaxSamples || c.Rounds > 0 && len(c.Ratios) > 0 && c.Rounds != len(c.Ratios) {
		out = append(out, fmt.Sprintf("%d rounds with %d ratios", c.Rounds, len(c.Ratios)))
	}
	return append(out, figures(c.RoundsDone(), c.Ratio, c.CI95)...)
}

// figures checks a median of so many samples and its interval.
func figures(samples int, median float64, ci *[2]float64) []string {
	if ci == nil {
		return nil
	}
	var out []string
	if samples < 6 {
		out = append(out, fmt.Sprintf("ci95 from %d samples, it takes 6", samples))
	}
	if ci[0] > median || median > ci[1] {
		out = append(out, fmt.Sprintf("median %g lies outside its ci95 [%g, %g]", median, ci[0], ci[1]))
	}
	return out
}

// misplaced returns what is wrong with the positions of a row's samples.
func (r Row) misplaced() []string {
	n := 0
	for _, p := range r.Positions {
		if p.Count < 0 || p.Count > MaxSamples {
			return []string{fmt.Sprintf("%d samples at a position", p.Count)}
		}
		n += max(p.Count, 1)
	}
	if n > 0 && n != len(r.Samples) {
		return []string{fmt.Sprintf("%d positions of %d samples", n, len(r.Samples))}
	}
	return nil
}
