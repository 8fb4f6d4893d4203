// SPDX-License-Identifier: Apache-2.0

// Package progress shows how far a run of bench is, and how long it still takes.
package progress

import (
	"fmt"
	"io"
	"time"

	"github.com/schollz/progressbar/v3"
)

// Reporter shows the progress of a run.
type Reporter interface {
	// Note prints a line.
	Note(text string)
	// Later sets the expected time of the suites after the one that starts next.
	Later(rest time.Duration)
	// Start sets the number of samples and the expected time of one. It is not called
	// where instructions are counted.
	Start(samples int, each time.Duration)
	// Sample names the row whose sample begins.
	Sample(row string)
	// Done ends a sample.
	Done()
	// Round ends a round.
	Round(round, rounds int)
	// Finish ends the display.
	Finish()
}

// Width of the parts of the live line, which fits in 80 columns.
const (
	rowColumns = 36
	barColumns = 12
)

// New returns a reporter that writes to w, usually standard error. On a
// terminal it keeps one live line with the current row and the time left; elsewhere it
// writes a line per round. Notes are lines in both.
func New(w io.Writer, terminal bool) Reporter {
	return newReporter(w, terminal, time.Now)
}

// newReporter is New with a clock.
func newReporter(w io.Writer, terminal bool, now func() time.Time) Reporter {
	if terminal {
		return &livePrinter{w: w, now: now}
	}
	return &linePrinter{w: w, now: now}
}

// linePrinter reports in lines.
type linePrinter struct {
	w   io.Writer
	now func() time.Time
	pace
}

// Note prints a line.
func (p *linePrinter) Note(text string) { _, _ = fmt.Fprintln(p.w, text) }

// Start prints the expected time.
func (p *linePrinter) Start(samples int, each time.Duration) {
	p.pace = pace{total: samples, each: each, started: p.now(), later: p.pace.later}
	p.Note("about " + clockTime(p.pace.left(p.pace.started)))
}

// Sample prints nothing: a line per sample would be too much.
func (*linePrinter) Sample(string) {}

// Done counts a sample.
func (p *linePrinter) Done() { p.pace.done++ }

// Round prints the round and the time left.
func (p *linePrinter) Round(round, rounds int) {
	p.pace.complete(round, rounds)
	text := fmt.Sprintf("round %d of %d done", round, rounds)
	if round < rounds || p.pace.later > 0 {
		text += fmt.Sprintf(", about %s left", clockTime(p.pace.left(p.now())))
	}
	p.Note(text)
}

// Finish has nothing to clear.
func (*linePrinter) Finish() {}

// livePrinter reports in one line that it redraws.
type livePrinter struct {
	w   io.Writer
	now func() time.Time
	pace
	row string
	bar *progressbar.ProgressBar // nil before Start and after Finish
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
	p.pace = pace{total: samples, each: each, started: p.now(), later: p.pace.later}
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
		progressbar.OptionSetPredictTime(false), // pace predicts it
		progressbar.OptionSetDescription(p.describe()),
		progressbar.OptionClearOnFinish(),
	)
	_ = p.bar.RenderBlank()
}

// Sample shows the row.
func (p *livePrinter) Sample(row string) {
	p.row = row
	p.show()
}

// Done counts a sample.
func (p *livePrinter) Done() {
	p.pace.done++
	p.show()
}

// Round moves the bar to the end of the round, past samples of failed rows.
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

// show redraws the line. The last sample leaves the bar one short of full, since a full
// bar ends itself.
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

// pace estimates the time that the rest of a run takes.
type pace struct {
	total   int
	each    time.Duration // expected time of a sample
	started time.Time
	done    int
	later   time.Duration // expected time of the suites to come
}

// Later adds the suites to come to the time left.
func (p *pace) Later(rest time.Duration) { p.later = rest }

// left returns the time that the remaining samples take: initially from the expected
// time of a sample, later from the time of those that are done. The suites to come are added.
func (p pace) left(now time.Time) time.Duration {
	remaining := time.Duration(max(p.total-p.done, 0))
	if p.done == 0 {
		return p.later + max(remaining*p.each-now.Sub(p.started), 0)
	}
	return p.later + remaining*(now.Sub(p.started)/time.Duration(p.done))
}

// complete sets the number of samples done to a share of the total, to account for
// samples of failed rows.
func (p *pace) complete(part, whole int) {
	if whole > 0 {
		p.done = p.total * part / whole
	}
}
