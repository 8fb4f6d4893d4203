// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"strings"

	"mustang/internal/report/format"
	"mustang/internal/result"
)

// answer puts the parts of the suite's answer in words. The first sentence is the
// headline.
func (t *workloadTable) answer() Answer {
	var lines []string
	for i, part := range t.suite.Answer {
		switch part {
		case result.AnswerFastest:
			lines = append(lines, t.winner()+t.failed())
		case result.AnswerRanking:
			lines = append(lines, t.ranking()...)
		case result.AnswerReference:
			if why := t.noReference(); why == "" {
				lines = append(lines, t.addedTime())
				lines = append(lines, t.againstReference()...)
			} else if i == 0 {
				lines = append(lines, why)
			}
		case result.AnswerReferenceFigure:
			lines = append(lines, t.referenceFigure())
		case result.AnswerTally:
			lines = append(lines, t.tally()+t.failed())
		case result.AnswerTail:
			lines = append(lines, t.tail())
		case result.AnswerCallRate:
			lines = append(lines, t.callRate())
		case result.AnswerGrid:
			lines = append(lines, t.bestOf())
		case result.AnswerStatements:
			if i == 0 {
				lines = append(lines, t.stated()...)
			}
			lines = append(lines, t.statements()...)
		}
	}
	var a Answer
	for _, line := range lines {
		switch {
		case line == "":
		case a.Headline == "":
			a.Headline = format.KeepTogether(line)
		default:
			a.Details = append(a.Details, format.KeepTogether(format.UpperFirst(line)))
		}
	}
	return a
}

// nouns are what the suite's rows stand for, in the singular and the plural, and the
// first word alone.
func (t *workloadTable) nouns() (singular, plural, short string) {
	singular = cmp.Or(format.Clean(t.suite.Noun), "row")
	short, rest, _ := strings.Cut(singular, " ")
	return singular, strings.TrimSpace(short + "s " + rest), short
}

// ranking lists the measured rows, with a tilde between neighbours that are tied,
// and compares the last with the first.
func (t *workloadTable) ranking() []string {
	ranked := t.ranked(t.measured())
	if len(ranked) < 2 {
		return nil
	}
	best, worst := ranked[0], ranked[len(ranked)-1]
	var b strings.Builder
	for i, e := range ranked {
		switch {
		case i == 0:
		case t.difference(ranked[i-1], e).verdict == tied:
			b.WriteString(" ~\u00a0")
		default:
			b.WriteString(", ")
		}
		b.WriteString(e.named())
	}
	return []string{
		"Ranking from the " + t.wording.extreme + " figure (~: no difference found between neighbours): " + b.String() + ".",
		"Last: " + worst.name + " with " + t.figure(worst) + "; against " + best.name + ": " + t.describe(t.difference(worst, best)) + ".",
	}
}

// failed counts the rows that failed, in a sentence; empty if none did. [Suite.NotMeasured] has
// those that were skipped.
func (t *workloadTable) failed() string {
	_, _, short := t.nouns()
	return failures(t.withoutRepeats(), short)
}

// failures counts the entries that failed, in a sentence; empty if none did.
func failures(entries []*entry, noun string) string {
	n := 0
	for _, e := range entries {
		if e.Status == result.StatusFailed {
			n++
		}
	}
	if n == 0 {
		return ""
	}
	return " " + format.Count(n, noun) + " failed."
}

// tail gives the 99th percentile of each row.
func (t *workloadTable) tail() string {
	return t.each("99 of 100 "+t.events()+" took less than: ", " "+t.latencyUnit(), func(e *entry) float64 {
		if e.LatencyUS == nil {
			return 0
		}
		return t.latency(e.LatencyUS.P99)
	})
}

// callRate gives the calls per second of each row.
func (t *workloadTable) callRate() string {
	return t.each("Calls done in a second: ", "", func(e *entry) float64 { return e.CallsPerSecond })
}

// each lists a figure of each measured row; empty if none has it.
func (t *workloadTable) each(words, unit string, figure func(*entry) float64) string {
	var parts []string
	for _, e := range t.measured() {
		if v := figure(e); v > 0 {
			parts = append(parts, e.name+" "+format.Number(v, format.FewDecimals(v))+unit)
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return words + strings.Join(parts, ", ") + "."
}

// events names what the table's latencies are of.
func (t *workloadTable) events() string {
	if t.calls() {
		return "calls"
	}
	return "transactions"
}
