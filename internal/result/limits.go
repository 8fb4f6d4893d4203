// SPDX-License-Identifier: Apache-2.0

package result

import (
	"fmt"
	"maps"
	"slices"
)

// Limits of a file, far above those of any run. They bound the time and the memory
// that a reader of an odd or hostile file needs.
const (
	maxBytes       = 64 << 20
	maxRows        = 5_000
	maxComparisons = 20_000
	maxSuites      = 100
	maxWorkloads   = 50     // of a suite, each number of flows counted
	maxPairs       = 10_000 // of a suite's statements
	maxSeries      = 100
	maxEvidence    = 1_000 // entries of each list
	maxName        = 500   // bytes of an ID, label or unit
	maxText        = 64 << 10
	maxFigure      = 1e15
)

// limit returns a problem if n is above most.
func limit(what string, n, most int) []string {
	if n > most {
		return []string{fmt.Sprintf("%d %s, the most is %d", n, what, most)}
	}
	return nil
}

// limitNames returns a problem for each name that is too long.
func limitNames(names ...string) []string {
	var out []string
	for _, s := range names {
		out = append(out, limit("bytes in a name", len(s), maxName)...)
	}
	return out
}

// limitTexts returns a problem if there are too many texts, or one is too long.
func limitTexts(texts ...string) []string {
	out := limit("texts", len(texts), maxEvidence)
	for _, s := range texts {
		if len(s) > maxText {
			return append(out, limit("bytes in a text", len(s), maxText)...)
		}
	}
	return out
}

// limits returns the limits that the run exceeds.
func (r Run) limits() []string {
	out := slices.Concat(
		limitNames(r.Suite, r.Machine.CPUModel, r.Machine.Arch, r.Machine.Virtualisation, r.Kernel),
		limitTexts(r.Notes...), limit("comparisons", len(r.Comparisons), maxComparisons), limit("traces", len(r.Traces), maxTraces),
		bounded("duration_seconds", r.DurationSeconds), bounded("warmup_seconds", r.WarmupSeconds), bounded("time_seconds", r.TimeSeconds),
		bounded("slice_seconds", r.SliceSeconds))
	for _, m := range []map[string]string{r.Versions, r.Settings, r.Offloads} {
		out = append(out, limitTexts(slices.Collect(maps.Keys(m))...)...)
		out = append(out, limitTexts(slices.Collect(maps.Values(m))...)...)
	}
	return append(out, limitTexts(slices.Collect(maps.Keys(r.Pinning))...)...)
}

// limits returns the limits that the suite exceeds.
func (s Suite) limits() []string {
	out := slices.Concat(
		limitNames(s.Name, s.Noun, s.Reference, s.ReferenceChart, s.Subject, s.Object), limitTexts(s.Question), limitTexts(s.Notes...),
		limit("parts of an answer", len(s.Answer), maxSeries), limit("groups", len(s.Groups), maxSeries),
		limit("series", len(s.Series), maxSeries), limit("statements", len(s.Statements), maxEvidence))
	for _, g := range s.Groups {
		out = append(out, limitNames(g.Caption)...)
		out = append(out, limit("rows of a group", len(g.Rows), maxRows)...)
	}
	for _, series := range s.Series {
		out = append(out, limitNames(series.Name)...)
		out = append(out, limit("rows of a series", len(series.Rows), maxRows)...)
	}
	pairs := 0
	for _, st := range s.Statements {
		out = append(out, limitNames(st.Caption)...)
		pairs += len(st.Pairs)
		for _, p := range st.Pairs {
			out = append(out, limitNames(p.Label)...)
		}
	}
	return append(out, limit("pairs", pairs, maxPairs)...)
}

// limits returns the limits that the row exceeds.
func (r Row) limits() []string {
	e := r.Evidence
	var programs []string
	for _, p := range r.BPFNanos {
		programs = append(programs, p.Program)
	}
	return slices.Concat(
		limitNames(r.ID, r.Label, r.Repeats, r.Link, r.Variant, r.Engine, r.Unit, r.CPUUnit),
		limitTexts(r.Reason, r.Note), limit("samples", len(r.Samples), MaxSamples),
		limit("devices", len(e.Devices), maxEvidence), limit("programs", len(e.ProgramRuns), maxEvidence),
		limit("bpf_ns", len(programs), maxEvidence), limitNames(programs...),
		limitTexts(e.Hooks...), limitTexts(e.Findings...))
}
