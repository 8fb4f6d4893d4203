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

// pace estimates the time that the rest of a run takes: until an end that is known, or by a number of samples.
type pace struct {
	started, end time.Time
	total, done  int           // samples
	each         time.Duration // expected time of one
	counted      time.Time     // when the last one was done
	later        time.Duration // expected time of the suites to come
}

// priorShare is the share of the samples whose expected time weighs as much as the measured time of as many.
const priorShare = 0.05

func (p *pace) left(now time.Time) time.Duration {
	if p.total == 0 {
		return p.later + max(p.end.Sub(now), 0)
	}
	prior := priorShare * float64(p.total)
	each := (prior*p.each.Seconds() + p.counted.Sub(p.started).Seconds()) / (prior + float64(p.done))
	rest := time.Duration(each * float64(max(p.total-p.done, 0)) * float64(time.Second))
	return p.later + max(rest-now.Sub(p.counted), 0)
}

// percent returns how much of the present suite is done.
func (p *pace) percent(now time.Time) int {
	switch planned := p.end.Sub(p.started); {
	case p.total > 0:
		return 100 * min(p.done, p.total) / p.total
	case planned > 0:
		return int(100 * min(now.Sub(p.started), planned) / planned)
	}
	return 0
}

// Later adds the suites to come to the time left.
func (p *pace) Later(rest time.Duration) { p.later = rest }

func (p *pace) count(now time.Time, samples int, each time.Duration) {
	*p = pace{started: now, counted: now, total: samples, each: each, later: p.later}
}

// expect sets the end of a suite whose number of samples is not known.
func (p *pace) expect(now time.Time, spent, left time.Duration) {
	*p = pace{started: now.Add(-spent), end: now.Add(left), later: p.later}
}

func (p *pace) finish(now time.Time) {
	p.done++
	p.counted = now
}

// complete sets the number of samples done to a share of the total, to account for samples of failed rows.
func (p *pace) complete(now time.Time, part, whole int) {
	if whole > 0 {
		p.done, p.counted = p.total*part/whole, now
	}
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
