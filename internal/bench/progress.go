// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"io"
	"time"

	"github.com/schollz/progressbar/v3"
)

// Width of the parts of the live line, so that all fits in 80 columns.
const (
	rowColumns = 36
	barColumns = 12
)

// NewProgress returns a reporter that writes to w, usually standard error. On a
// terminal it keeps one live line with the row that runs and the time left;
// elsewhere it writes a line per round. Notes are lines in both.
func NewProgress(w io.Writer, terminal bool) Reporter {
	return newProgress(w, terminal, time.Now)
}

// newProgress is NewProgress with a clock.
func newProgress(w io.Writer, terminal bool, now func() time.Time) Reporter {
	if terminal {
		return &livePrinter{w: w, now: now}
	}
	return &linePrinter{w: w, now: now}
}

// linePrinter reports in lines.
type linePrinter struct {
	w    io.Writer
	now  func() time.Time
	pace pace
}

// Note prints a line.
func (p *linePrinter) Note(text string) { _, _ = fmt.Fprintln(p.w, text) }

// Start prints how much there is to do.
func (p *linePrinter) Start(samples int, each time.Duration) {
	p.pace = pace{total: samples, each: each, started: p.now()}
	p.Note(fmt.Sprintf("%d samples, about %s", samples, clockTime(p.pace.left(p.pace.started))))
}

// Sample prints nothing: a line per sample would bury the rest.
func (*linePrinter) Sample(string) {}

// Done counts a sample.
func (p *linePrinter) Done() { p.pace.done++ }

// Round prints how far the run is.
func (p *linePrinter) Round(round, rounds int) {
	p.pace.complete(round, rounds)
	text := fmt.Sprintf("round %d of %d done", round, rounds)
	if round < rounds {
		text += fmt.Sprintf(", about %s left", clockTime(p.pace.left(p.now())))
	}
	p.Note(text)
}

// Finish has nothing to clear.
func (*linePrinter) Finish() {}

// livePrinter reports in one line that it draws over and over.
type livePrinter struct {
	w    io.Writer
	now  func() time.Time
	pace pace
	row  string
	bar  *progressbar.ProgressBar // nil before Start and after Finish
}

// Note prints a line above the live one.
func (p *livePrinter) Note(text string) {
	if p.bar == nil {
		_, _ = fmt.Fprintln(p.w, text)
		return
	}
	_ = p.bar.Clear()
	_, _ = fmt.Fprintln(p.w, text)
	_ = p.bar.RenderBlank()
}

// Start draws the live line.
func (p *livePrinter) Start(samples int, each time.Duration) {
	p.pace = pace{total: samples, each: each, started: p.now()}
	p.row = ""
	if samples == 0 {
		return
	}
	p.bar = progressbar.NewOptions(samples,
		progressbar.OptionSetWriter(p.w),
		progressbar.OptionUseANSICodes(true),
		progressbar.OptionSetWidth(barColumns),
		progressbar.OptionShowCount(),
		progressbar.OptionSetElapsedTime(false),
		progressbar.OptionSetPredictTime(false), // it has its own idea of a pace
		progressbar.OptionSetDescription(p.describe()),
		progressbar.OptionClearOnFinish(),
	)
	_ = p.bar.RenderBlank()
}

// Sample shows which row runs.
func (p *livePrinter) Sample(row string) {
	p.row = row
	p.show()
}

// Done counts a sample.
func (p *livePrinter) Done() {
	p.pace.done++
	p.show()
}

// Round moves the bar to the round's end, also when rows fell away.
func (p *livePrinter) Round(round, rounds int) {
	p.pace.complete(round, rounds)
	p.show()
}

// Finish clears the live line.
func (p *livePrinter) Finish() {
	if p.bar == nil {
		return
	}
	_ = p.bar.Clear()
	p.bar = nil
}

// show draws the line anew. The last sample leaves the bar one short of full,
// since a full bar ends itself.
func (p *livePrinter) show() {
	if p.bar == nil {
		return
	}
	p.bar.Describe(p.describe())
	_ = p.bar.Set(min(p.pace.done, p.pace.total-1))
}

// describe returns the text before the bar: the time left and the row.
func (p *livePrinter) describe() string {
	row := []rune(p.row)
	if len(row) > rowColumns {
		row = append(row[:rowColumns-1], '…')
	}
	return fmt.Sprintf("%6s left  %-*s", clockTime(p.pace.left(p.now())), rowColumns, string(row))
}

// clockTime prints a time to the second, without parts that are zero.
func clockTime(d time.Duration) string {
	seconds := int(d.Round(time.Second) / time.Second)
	switch {
	case seconds < 60:
		return fmt.Sprintf("%ds", seconds)
	case seconds < 3600:
		return fmt.Sprintf("%dm%02ds", seconds/60, seconds%60)
	}
	return fmt.Sprintf("%dh%02dm", seconds/3600, seconds%3600/60)
}
