// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"mustang/internal/result"
)

// columns lays out a set's rows: one cell per entry in every column.
func (s *set) columns(wide bool) []column {
	out := []column{
		s.text(0, func(e *entry) string { return e.connection }, "connection"),
		s.text(0, func(e *entry) string { return targetName(e.Target) }, "target"),
		s.text(0, func(e *entry) string { return viaName(e.Via) }, "via"),
	}
	if s.byID {
		out = []column{s.text(0, func(e *entry) string { return e.connection }, "way")}
	}
	names := len(out)
	out = append(out, s.figures(3, []string{"offered", shortUnit(s.unit)}, func(e *entry) float64 { return e.Offered }))
	out = append(out, s.rate()...)
	if s.byID {
		out = append(out, s.referenceColumn(2), s.meanColumn(2))
	} else {
		out = append(out, s.costColumn())
	}
	if wide || ofCalls(s.workload) {
		out = append(out, s.costInterval())
	}
	out = append(out, s.figures(3, []string{"CPU µs", "per " + shortUnit(s.cpuUnit)}, func(e *entry) float64 { return e.CPUUSPerUnit }))
	out = append(out, s.lost())
	out = append(out, s.percentiles(wide)...)
	out = append(out, s.tailColumn(), s.perSecondColumn())
	if wide {
		out = append(out, s.counts()...)
	}
	for i := range out {
		out[i].right = i >= names
	}
	out = append(out, s.text(1, func(e *entry) string { return e.Status }, "status"))
	if s.byID {
		out = append(out, s.variants())
	}
	if wide {
		out = append(out, s.text(9, func(e *entry) string { return strings.Join(e.programs("="), " ") }, "program runs"))
	}
	return slices.DeleteFunc(out, func(c column) bool { return c.cells == nil })
}

// costInterval makes the column of the interval of what stands in the column
// before it.
func (s *set) costInterval() column {
	if s.byID && s.reference == nil {
		return column{}
	}
	rank := 9
	if ofCalls(s.workload) { // whose claims are about this figure
		rank = 2
	}
	return s.text(rank, func(e *entry) string {
		switch {
		case s.byID:
			return s.referenceInterval(e)
		case e.cost == nil || e.cost.CI95 == nil:
			return none
		}
		return ratio(e.cost.CI95[0]) + " to " + ratio(e.cost.CI95[1])
	}, "95 % interval", "of it")
}

// text makes a column of strings.
func (s *set) text(rank int, cell func(*entry) string, head ...string) column {
	c := column{head: head, rank: rank}
	for _, e := range s.entries {
		c.cells = append(c.cells, cell(e))
	}
	return c
}

// figures makes a column of numbers with the same number of decimal places; it
// has no cells if no entry has such a figure.
func (s *set) figures(rank int, head []string, value func(*entry) float64) column {
	var all []float64
	for _, e := range s.entries {
		if e.ok() && value(e) > 0 {
			all = append(all, value(e))
		}
	}
	if len(all) == 0 {
		return column{}
	}
	places := fewDecimals(all...)
	return s.text(rank, func(e *entry) string {
		if !e.ok() || value(e) <= 0 {
			return none
		}
		return number(value(e), places)
	}, head...)
}

// places is the number of decimal places of the set's rates.
func (s *set) places() int {
	var all []float64
	for _, e := range s.entries {
		if e.ok() {
			all = append(all, e.Median)
		}
	}
	return decimals(all...)
}

// rate makes the columns of the median and its interval.
func (s *set) rate() []column {
	places := s.places()
	name := "median"
	if slices.ContainsFunc(s.entries, func(e *entry) bool { return e.Offered > 0 }) {
		name = "received"
	}
	return []column{
		s.text(0, func(e *entry) string {
			if !e.ok() {
				return none
			}
			return number(e.Median, places)
		}, name, shortUnit(s.unit)),
		s.text(6, func(e *entry) string {
			if !e.ok() {
				return none
			}
			return interval(e.CI95, places)
		}, "95 % interval", shortUnit(s.unit)),
	}
}

// costColumn makes the column of cluster IP over pod IP; a tilde marks ratios
// in which no difference was found, a question mark those of too few rounds.
func (s *set) costColumn() column {
	return s.text(2, func(e *entry) string {
		if e.cost == nil {
			return none + " "
		}
		return ratio(e.cost.Ratio) + s.spread.judge(*e.cost).sign()
	}, "cluster/ ", "pod IP ")
}

// lost makes the column of the datagrams that did not arrive, with those that
// came out of order if there are any.
func (s *set) lost() column {
	c := s.lostShare()
	for i, e := range s.entries {
		if c.cells != nil && e.ok() && e.OutOfOrder > 0 {
			c.cells[i] += fmt.Sprintf(", %s late", number(float64(e.OutOfOrder), 0))
		}
	}
	return c
}

// lostShare makes the same column of the share alone.
func (s *set) lostShare() column {
	if s.workload != result.WorkloadUDPStream || s.reading.counted {
		return column{}
	}
	return s.text(2, func(e *entry) string {
		if !e.ok() {
			return none
		}
		return percent(e.LostShare)
	}, "lost", "of sent")
}

// percentiles makes the columns of the latency.
func (s *set) percentiles(wide bool) []column {
	one := func(rank int, name string, pick func(*entry) float64) column {
		return s.figures(rank, []string{name, s.latencyUnit()}, func(e *entry) float64 {
			if e.LatencyUS == nil {
				return 0
			}
			return s.latency(pick(e))
		})
	}
	out := []column{one(4, "p50", func(e *entry) float64 { return e.LatencyUS.P50 })}
	if wide {
		out = append(out, one(8, "p90", func(e *entry) float64 { return e.LatencyUS.P90 }))
	}
	out = append(out, one(5, "p99", func(e *entry) float64 { return e.LatencyUS.P99 }))
	if wide {
		out = append(out, one(8, "p99.9", func(e *entry) float64 { return e.LatencyUS.P999 }))
	}
	return out
}

// counts makes columns that only the wide table has.
func (s *set) counts() []column {
	return []column{
		s.text(7, func(e *entry) string { return strconv.Itoa(len(e.Samples)) }, "rounds"),
		s.figures(8, []string{"softirqs", "per " + shortUnit(s.cpuUnit)}, func(e *entry) float64 { return e.Evidence.SoftirqsPerUnit }),
	}
}
