// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"io"
	"time"

	"github.com/schollz/progressbar/v3"
)

// Progress shows the progress of a run.
type Progress interface {
	// Note prints a line.
	Note(text string)
	// Later sets the expected time of the suites after the one that starts next.
	Later(rest time.Duration)
	// Start sets the number of samples and the expected time of one. Neither it nor Expect is
	// called where instructions are counted.
	Start(samples int, each time.Duration)
	// Expect sets in place of samples how long the suite has been measured, and for how long
	// it still will be. Later calls correct that.
	Expect(spent, left time.Duration)
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

// NewProgress returns a reporter that writes to w, usually standard error. On a
// terminal it keeps one live line with the current row and the time left; elsewhere it
// writes a line per round, and one after lineEvery. Notes are lines in both.
func NewProgress(w io.Writer, terminal bool) Progress {
	return newReporter(w, terminal, time.Now)
}

// newReporter is NewProgress with a clock.
func newReporter(w io.Writer, terminal bool, now func() time.Time) Progress {
	if terminal {
		return &livePrinter{w: w, now: now}
	}
	return &linePrinter{w: w, now: now}
}

// lineEvery is the longest time without a line, as far as samples begin and end meanwhile.
const lineEvery = 30 * time.Second

// linePrinter reports in lines.
type linePrinter struct {
	w       io.Writer
	now     func() time.Time
	printed time.Time // the last line with the time left
	pace
}

// Note prints a line.
func (p *linePrinter) Note(text string) { _, _ = fmt.Fprintln(p.w, text) }

// Start prints the expected time.
func (p *linePrinter) Start(samples int, each time.Duration) {
	p.pace.count(p.now(), samples, each)
	p.first()
}

// Expect prints the expected time, when the suite begins.
func (p *linePrinter) Expect(spent, left time.Duration) {
	p.pace.expect(p.now(), spent, left)
	if spent == 0 {
		p.first()
	}
}

// first prints the expected time.
func (p *linePrinter) first() {
	p.printed = p.now()
	p.Note("about " + clockTime(p.pace.left(p.printed)))
}

// Sample prints no line for each: that would be too much.
func (p *linePrinter) Sample(string) { p.show() }

// Done counts a sample.
func (p *linePrinter) Done() {
	p.pace.finish(p.now())
	p.show()
}

// show prints the time left, after lineEvery.
func (p *linePrinter) show() {
	if now := p.now(); now.Sub(p.printed) >= lineEvery {
		p.printed = now
		p.Note("about " + clockTime(p.pace.left(now)) + " left")
	}
}

// Round prints the round and the time left.
func (p *linePrinter) Round(round, rounds int) {
	p.printed = p.now()
	p.pace.complete(p.printed, round, rounds)
	text := fmt.Sprintf("round %d of %d done", round, rounds)
	if round < rounds || p.pace.later > 0 {
		text += fmt.Sprintf(", about %s left", clockTime(p.pace.left(p.printed)))
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
	p.pace.count(p.now(), samples, each)
	if samples > 0 {
		p.draw()
	}
}

// Expect draws the live line, when the suite begins.
func (p *livePrinter) Expect(spent, left time.Duration) {
	p.pace.expect(p.now(), spent, left)
	if spent == 0 {
		p.draw()
	}
	p.show()
}

// draw draws the live line.
func (p *livePrinter) draw() {
	p.row = ""
	p.bar = progressbar.NewOptions(100,
		progressbar.OptionSetWriter(p.w),
		progressbar.OptionUseANSICodes(true),
		progressbar.OptionSetWidth(barColumns),
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
	p.pace.finish(p.now())
	p.show()
}

// Round moves the bar to the end of the round, past samples of failed rows.
func (p *livePrinter) Round(round, rounds int) {
	p.pace.complete(p.now(), round, rounds)
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

// show redraws the line. The bar is at 99 % until Finish, since a full bar ends itself.
func (p *livePrinter) show() {
	if p.bar == nil {
		return
	}
	p.bar.Describe(p.describe())
	_ = p.bar.Set(min(p.pace.percent(p.now()), 99))
}

// describe returns the text before the bar: the time left and the row.
func (p *livePrinter) describe() string {
	row := []rune(p.row)
	if len(row) > rowColumns {
		row = append(row[:rowColumns-1], '…')
	}
	return fmt.Sprintf("%6s left  %-*s", clockTime(p.pace.left(p.now())), rowColumns, string(row))
}
