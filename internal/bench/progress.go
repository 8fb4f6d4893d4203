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

// lineEvery is the longest time without a line, as far as samples begin and end meanwhile.
const lineEvery = 30 * time.Second

// NewProgress returns a reporter that writes to w, usually standard error. On a
// terminal it keeps one live line with the current row and the time left; elsewhere it
// writes a line per round, and one after lineEvery. Notes are lines in both.
func NewProgress(w io.Writer, terminal bool) Progress {
	return &reporter{w: w, terminal: terminal, now: time.Now}
}

// reporter is the Progress of a terminal or of a file.
type reporter struct {
	w        io.Writer
	terminal bool
	now      func() time.Time
	pace
	printed time.Time                // the last line with the time left
	row     string                   // in the live line
	bar     *progressbar.ProgressBar // nil before the first suite, after Finish, and without a terminal
}

// Note prints a line, above the live one.
func (p *reporter) Note(text string) {
	if p.bar != nil {
		_ = p.bar.Clear()
		defer func() { _ = p.bar.RenderBlank() }()
	}
	_, _ = fmt.Fprintln(p.w, text)
}

// Start shows the expected time.
func (p *reporter) Start(samples int, each time.Duration) {
	p.count(p.now(), samples, each)
	if samples > 0 || !p.terminal {
		p.first()
	}
}

// Expect shows the expected time.
func (p *reporter) Expect(spent, left time.Duration) {
	p.expect(p.now(), spent, left)
	if spent == 0 {
		p.first()
	}
	p.redraw()
}

// first prints the expected time, or draws the live line.
func (p *reporter) first() {
	p.printed, p.row = p.now(), ""
	if !p.terminal {
		p.Note("about " + clockTime(p.left(p.printed)))
		return
	}
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

// Sample shows the row in the live line.
func (p *reporter) Sample(row string) {
	p.row = row
	p.show()
}

// Done counts a sample.
func (p *reporter) Done() {
	p.finish(p.now())
	p.show()
}

// Round counts the samples of failed rows too.
func (p *reporter) Round(round, rounds int) {
	now := p.now()
	p.complete(now, round, rounds)
	p.redraw()
	if p.terminal {
		return
	}
	p.printed = now
	text := fmt.Sprintf("round %d of %d done", round, rounds)
	if round < rounds || p.later > 0 {
		text += fmt.Sprintf(", about %s left", clockTime(p.left(now)))
	}
	p.Note(text)
}

// Finish clears the live line.
func (p *reporter) Finish() {
	if p.bar != nil {
		_ = p.bar.Clear()
		p.bar = nil
	}
}

// show shows the time left: without a terminal after lineEvery.
func (p *reporter) show() {
	p.redraw()
	if now := p.now(); !p.terminal && now.Sub(p.printed) >= lineEvery {
		p.printed = now
		p.Note("about " + clockTime(p.left(now)) + " left")
	}
}

// redraw redraws the live line. The bar is at 99 % until Finish, since a full bar ends itself.
func (p *reporter) redraw() {
	if p.bar != nil {
		p.bar.Describe(p.describe())
		_ = p.bar.Set(min(p.percent(p.now()), 99))
	}
}

// describe returns the text before the bar: the time left and the row.
func (p *reporter) describe() string {
	row := []rune(p.row)
	if len(row) > rowColumns {
		row = append(row[:rowColumns-1], '…')
	}
	return fmt.Sprintf("%6s left  %-*s", clockTime(p.left(p.now())), rowColumns, string(row))
}
