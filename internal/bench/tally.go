// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"strings"

	hdrhistogram "github.com/HdrHistogram/hdrhistogram-go"

	"mustang/internal/result"
)

// tally gathers the samples of a row.
type tally struct {
	cell      cell
	row       result.Row
	byRound   map[int]float64
	cpu       []float64
	offered   []float64
	softirqs  []float64
	perSecond []float64 // calls of plugins
	sent      uint64    // datagrams
	received  uint64
	histogram *hdrhistogram.Histogram
}

func newTally(c cell) *tally {
	return &tally{cell: c, row: c.path.row(c.suite, c.workload), byRound: map[int]float64{}}
}

// add takes a sample of a round.
func (t *tally) add(s sample, round int) {
	m, f := s.measurement, s.figure
	t.row.Unit, t.row.CPUUnit = f.unit, f.cpuUnit
	t.row.Samples = append(t.row.Samples, f.value)
	t.byRound[round] = f.value
	t.cpu = append(t.cpu, f.cpu)
	t.softirqs = append(t.softirqs, f.softirqs)
	if m.Offered > 0 && f.timed() {
		t.offered = append(t.offered, m.Offered)
	}
	if f.cpuUnit == callUnit && m.Flows > 1 {
		t.perSecond = append(t.perSecond, float64(m.Count)/m.Seconds)
	}
	t.sent += m.Sent
	t.received += m.Received
	t.row.OutOfOrder += m.OutOfOrder
	t.evidence(s.evidence)
	t.row.Variant = s.variant(t.cell.path.variant)
	if m.Histogram == nil || !f.timed() {
		return
	}
	if t.histogram == nil {
		t.histogram = m.Histogram
		return
	}
	t.histogram.Merge(m.Histogram)
}

func (t *tally) evidence(e result.Evidence) { merge(&t.row.Evidence, e) }

// remark adds a remark to the row's own.
func (t *tally) remark(text string) {
	switch {
	case text == "":
	case t.row.Note == "":
		t.row.Note = text
	default:
		t.row.Note += "; " + text
	}
}

// skip says that this machine cannot measure the row.
func (t *tally) skip(err error) { t.row.Status, t.row.Reason = result.StatusSkipped, oneLine(err) }

// fail says that the row could not be measured, or was not what it claims.
func (t *tally) fail(err error) { t.row.Status, t.row.Reason = result.StatusFailed, oneLine(err) }

// oneLine is the text of an error, which may be of several, as one line.
func oneLine(err error) string {
	lines := strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' })
	return strings.Join(lines, "; ")
}

// over reports whether the row takes no more samples.
func (t *tally) over() bool { return t.row.Status != "" }

// result returns the row as it is, and whether there is anything to tell of it.
func (t *tally) result() (result.Row, bool) {
	row := t.row
	if row.Status == "" {
		if len(row.Samples) == 0 {
			return row, false
		}
		row.Status = result.StatusOK
	}
	if len(row.Samples) == 0 {
		return row, true
	}
	row.Median, row.CI95 = summarize(row.Samples)
	row.CPUUSPerUnit = median(t.cpu)
	row.Evidence.SoftirqsPerUnit = median(t.softirqs)
	if len(t.offered) > 0 {
		row.Offered = median(t.offered)
	}
	if len(t.perSecond) > 0 {
		row.CallsPerSecond = median(t.perSecond)
	}
	if t.sent > t.received {
		row.LostShare = float64(t.sent-t.received) / float64(t.sent)
	}
	if h := t.histogram; h != nil && h.TotalCount() > 0 {
		at := func(percentile float64) float64 { return float64(h.ValueAtPercentile(percentile)) / 1e3 }
		row.LatencyUS = &result.Latency{P50: at(50), P90: at(90), P99: at(99), P999: at(99.9)}
	}
	return row, true
}
