// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"
)

// WriteText writes a report as one screen, or the objects of the query. It escapes unprintable characters.
func WriteText(w io.Writer, r Report, q Query) error {
	t := text{tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)}
	if q.Kind == "" && !q.Wrong {
		t.head(r)
	}
	for _, o := range r.Objects {
		t.object(o)
	}
	if r.Omitted > 0 {
		t.line("and %d more that are wrong: --wrong shows all", r.Omitted)
	}
	return t.Flush()
}

type text struct{ *tabwriter.Writer }

func (t text) line(format string, args ...any) {
	for i, a := range args {
		if s, ok := a.(string); ok {
			args[i] = printable(s)
		}
	}
	fmt.Fprintf(t, format+"\n", args...)
}

func (t text) head(r Report) {
	t.line("node\t%s", r.Node)
	t.line("agent\tmustang %s, process %d", r.Version, r.PID)
	t.line("pods\tlink %s, services %s, routing %s", r.Link, r.Services, r.Routing)
	for _, text := range r.Warnings {
		t.line("\twarning: %s", text)
	}
	if r.Unread != "" {
		t.line("cluster\terror: %s", r.Unread)
	}
	t.rounds("sync", r.Sync, r.Time)
	if r.Nodes.Number > 0 {
		t.rounds("nodes", r.Nodes, r.Time)
	}
	t.line("")
	t.line("KIND\tOBJECTS\tWANTED\tINSTALLED\tWAITING\tWRONG\tNOTES")
	for _, c := range r.Kinds {
		t.line("%s\t%d\t%d\t%d\t%d\t%d\t%d", c.Kind, c.Objects, c.Wanted, c.InTables, c.Waiting, c.Wrong, c.Notes)
	}
	if len(r.Objects) > 0 {
		t.line("")
	}
}

func (t text) rounds(name string, r Rounds, now time.Time) {
	if r.First.IsZero() {
		t.line("%s\tnot all has been written yet", name)
	} else {
		t.line("%s\tfirst %s, last %s", name, ago(r.First, now), ago(r.Last, now))
	}
	if r.Number > 0 {
		word := map[bool]string{true: "round", false: "rounds"}[r.Number == 1]
		t.line("\t%d %s, %d failed; the last took %s, the longest %s, on average %s", r.Number, word, r.Failed, span(r.Took),
			span(r.Longest), span(r.Mean))
	}
	if !r.Running.IsZero() {
		t.line("\ta round runs since %s: what it writes may be installed in part", ago(r.Running, now))
	}
	if !r.Waiting.IsZero() {
		t.line("\ta change waits since %s", ago(r.Waiting, now))
	}
	for line := range strings.Lines(r.Error) {
		t.line("\terror: %s", strings.TrimSpace(line))
	}
}

func (t text) object(o Object) {
	t.line("%s %s: %s", o.Kind, o.fullName(), string(o.State))
	for _, e := range o.Entries {
		state := "not installed"
		if e.InTables {
			state = "installed"
		} else if o.Kind == Service {
			state = "not served"
		}
		if e.Why != "" {
			state += ": " + oneLine(e.Why)
		}
		t.line("  %s\t%s\t%s", e.What, e.Detail, state)
	}
	for _, why := range o.Why {
		t.line("  %s", oneLine(why))
	}
	for _, note := range o.Notes {
		t.line("  note: %s", oneLine(note))
	}
}

// oneLine joins the lines of errors.
func oneLine(text string) string { return strings.ReplaceAll(text, "\n", "; ") }

// ago returns "4 s ago": in the largest unit with a value of at least two.
func ago(at, now time.Time) string {
	d := now.Sub(at)
	if d < 0 {
		return at.Format(time.RFC3339)
	}
	for _, u := range []struct {
		unit time.Duration
		name string
	}{{24 * time.Hour, "days"}, {time.Hour, "h"}, {time.Minute, "min"}} {
		if d >= 2*u.unit {
			return fmt.Sprintf("%d %s ago", d/u.unit, u.name)
		}
	}
	return fmt.Sprintf("%d s ago", d/time.Second)
}

func span(seconds float64) string {
	switch {
	case seconds < 0.01:
		return fmt.Sprintf("%.1f ms", seconds*1e3)
	case seconds < 1:
		return fmt.Sprintf("%.0f ms", seconds*1e3)
	}
	return fmt.Sprintf("%.1f s", seconds)
}

// printable returns a text with unprintable characters in Go syntax.
func printable(text string) string {
	if utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return text
	}
	return strconv.QuoteToASCII(text)
}
