// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// Progress shows how long a run takes, and notes.
type Progress struct {
	w            io.Writer
	terminal     bool
	started, end time.Time     // of the present suite, as expected; zero before its first row
	later        time.Duration // expected time of the suites to come
	printed      time.Time     // when the last line with the time left was printed
	row          string        // in the live line
}

// Width of the parts of the live line, which fits in 80 columns.
const (
	rowColumns = 36
	barColumns = 12
)

const lineEvery = 30 * time.Second // the longest time without a line while samples begin

// NewProgress returns the progress that is written to w, usually standard error. On a terminal it keeps one live line
// with the current row and the time left; elsewhere it writes a line after lineEvery. Notes are lines in both.
func NewProgress(w io.Writer, terminal bool) *Progress { return &Progress{w: w, terminal: terminal} }

// Note prints a line, above the live one.
func (p *Progress) Note(text string) {
	_, _ = fmt.Fprintln(p.w, p.erase()+text)
	p.draw()
}

// Suite begins a suite. later is the expected time of the suites after it.
func (p *Progress) Suite(later time.Duration) {
	p.Finish()
	p.started, p.later = time.Time{}, later
}

// Row prints the row that is measured next, and how long its suite still takes.
func (p *Progress) Row(row string, left time.Duration) {
	now := time.Now()
	p.row, p.end = row, now.Add(left)
	text := "about " + clockTime(left+p.later)
	if p.started.IsZero() {
		p.started, p.printed = now, time.Time{}
	} else {
		text += " left"
	}
	if !p.terminal && now.Sub(p.printed) >= lineEvery {
		p.printed = now
		p.Note(text)
	}
	p.draw()
}

// Finish clears the live line.
func (p *Progress) Finish() {
	_, _ = io.WriteString(p.w, p.erase())
	p.row = ""
}

func (p *Progress) erase() string {
	if p.row == "" || !p.terminal {
		return ""
	}
	return "\r\x1b[2K"
}

func (p *Progress) draw() {
	if p.row == "" || !p.terminal {
		return
	}
	row, left := []rune(p.row), max(time.Until(p.end), 0)
	if len(row) > rowColumns {
		row = append(row[:rowColumns-1], '…')
	}
	done := 1 - left.Seconds()/max(p.end.Sub(p.started).Seconds(), 1)
	bar := strings.Repeat("█", int(min(max(done, 0), 1)*barColumns))
	_, _ = fmt.Fprintf(p.w, "%s%6s left  %-*s %3.0f %% |%-*s|",
		p.erase(), clockTime(left+p.later), rowColumns, string(row), 100*done, barColumns, bar)
}

// pace estimates the time left of a number of samples; the time that is expected of one counts as a sample.
type pace struct {
	started     time.Time
	each        time.Duration
	total, done int
}

func (p *pace) left() time.Duration {
	mean := (p.each + time.Since(p.started)) / time.Duration(p.done+1)
	return mean * time.Duration(max(p.total-p.done, 0))
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
