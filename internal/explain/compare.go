// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"

	"mustang/internal/report"
	"mustang/internal/result"
)

// Comparison is the difference of two rows by step: Row minus Against.
type Comparison struct {
	Schema  int         `json:"schema"`
	Row     Explanation `json:"row"`
	Against Explanation `json:"against"`
	// Untraced is the difference of the transactions without tracing, and Sum the difference of all steps.
	Untraced float64        `json:"untraced"`
	Sum      float64        `json:"sum"`
	Classes  []report.Total `json:"classes"` // differences of the sums of classes
	Steps    []Pair         `json:"steps"`   // of both rows side by side
}

// Pair is a step that both rows have, or only one.
type Pair struct {
	Row     *result.Step `json:"row"`
	Against *result.Step `json:"against"`
}

// Compare compares two rows.
func Compare(row, against Explanation) Comparison {
	c := Comparison{
		Schema: Schema, Row: row, Against: against, Untraced: row.Untraced - against.Untraced, Sum: row.Sum - against.Sum,
		Steps: align(row.Steps, against.Steps),
	}
	others := report.Totals(against.Steps)
	for i, a := range report.Totals(row.Steps) {
		if b := others[i]; a != b {
			c.Classes = append(c.Classes, report.Total{
				Class: a.Class, Count: a.Count - b.Count, More: a.More - b.More, Sum: a.Sum - b.Sum,
			})
		}
	}
	return c
}

// align pairs the steps of two rows in order: a longest common subsequence of steps of one direction and kind.
func align(a, b []result.Step) (pairs []Pair) {
	same := func(i, j int) bool { return a[i].Direction == b[j].Direction && a[i].Kind == b[j].Kind }
	length := make([][]int, len(a)+1) // of the remainders' subsequence
	for i := range length {
		length[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			length[i][j] = max(length[i+1][j], length[i][j+1])
			if same(i, j) {
				length[i][j] = length[i+1][j+1] + 1
			}
		}
	}
	for i, j := 0, 0; i < len(a) || j < len(b); {
		switch {
		case i < len(a) && j < len(b) && same(i, j):
			pairs = append(pairs, Pair{&a[i], &b[j]})
			i, j = i+1, j+1
		case j == len(b) || i < len(a) && length[i+1][j] >= length[i][j+1]:
			pairs = append(pairs, Pair{Row: &a[i]})
			i++
		default:
			pairs = append(pairs, Pair{Against: &b[j]})
			j++
		}
	}
	return pairs
}

// WriteText writes a comparison as text: both rows by step, the differences by class, and without tracing.
func (c Comparison) WriteText(w io.Writer) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s against %s: request/response over TCP, %s in each step\n\n", c.Row.Suite, c.Row.Row,
		c.Against.Row, c.Row.Clock)
	tab := tabwriter.NewWriter(&b, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(tab, "%s\t%s\tdifference\t\t  request\n", c.Row.Row, c.Against.Row)
	direction := result.Request
	for _, p := range c.Steps {
		if d := cmp.Or(p.Row, p.Against).Direction; d != direction {
			direction = d
			fmt.Fprintf(tab, "\t\t\t\t  %s\n", direction)
		}
		p.write(tab)
	}
	fmt.Fprint(tab, "\t\t\t\t  both\n")
	for _, t := range c.Classes {
		text := t.Class
		if t.Count != 0 {
			text += fmt.Sprintf(" (%+d)", t.Count)
		}
		fmt.Fprintf(tab, "\t\t%s\t\t    %s\n", figure(t.Sum), text)
	}
	fmt.Fprintf(tab, "%s\t%s\t%s\t\t    sum\n", figure(c.Row.Sum), figure(c.Against.Sum), figure(c.Sum))
	fmt.Fprintf(tab, "%s\t%s\t%s\t\t    without tracing\n", figure(c.Row.Untraced), figure(c.Against.Untraced),
		figure(c.Untraced))
	tab.Flush() // to a buffer
	than, pairs, agree := "less", min(len(c.Row.Rounds), len(c.Against.Rounds)), 0
	if c.Untraced > 0 {
		than = "more"
	}
	for i := range pairs { // of neighbouring runs
		if (c.Row.Rounds[i]-c.Against.Rounds[i] > 0) == (c.Untraced > 0) {
			agree++
		}
	}
	fmt.Fprintf(&b, "\nWithout tracing, a transaction of %s takes %s %s %s, in %d of %d pairs of runs.\n",
		c.Row.Row, figure(math.Abs(c.Untraced)), c.Row.Clock, than, agree, pairs)
	for _, e := range []Explanation{c.Row, c.Against} {
		for _, note := range e.notes() {
			fmt.Fprintf(&b, "%s: %s\n", e.Row, note)
		}
	}
	_, err := b.WriteTo(w)
	return err
}

// write writes a line: the times of both steps and their difference, and the places and names, once if they are alike.
func (p Pair) write(w io.Writer) {
	figures, places, names := []string{report.None, report.None, ""}, []string{}, []string{}
	difference, known := 0.0, true
	for i, s := range []*result.Step{p.Row, p.Against} {
		if s == nil {
			continue
		}
		figures[i], known = report.StepFigure(*s), known && s.Time != 0
		difference += []float64{1, -1}[i] * s.Time
		if len(places) == 0 || places[0] != s.Place {
			places = append(places, s.Place)
		}
		if len(names) == 0 || names[0] != s.String() {
			names = append(names, s.String())
		}
	}
	if known {
		figures[2] = figure(difference)
	}
	fmt.Fprintf(w, "%s\t%s\t    %s\n", strings.Join(figures, "\t"), strings.Join(places, " | "),
		strings.Join(names, " | "))
}

// WriteSVG draws both rows side by side.
func (c Comparison) WriteSVG(w io.Writer) error {
	return report.Draw(w, c.Row.path(), c.Against.path())
}
