// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"

	"mustang/internal/explain/steps"
)

// Comparison tells the difference of two rows by step.
type Comparison struct {
	Schema int `json:"schema"`
	// Row is compared with Against.
	Row     Explanation `json:"row"`
	Against Explanation `json:"against"`
	// Untraced is the difference of the transactions without tracing, and Sum that of all
	// steps: Row less Against, as all differences.
	Untraced float64 `json:"untraced"`
	Sum      float64 `json:"sum"`
	// Classes are the differences of the sums of classes.
	Classes []steps.Total `json:"classes"`
	// Steps are the steps of both rows side by side.
	Steps []Pair `json:"steps"`
}

// Pair is a step that both rows have, or only one.
type Pair struct {
	Row     *Step `json:"row"`
	Against *Step `json:"against"`
}

// compare compares two rows.
func compare(row, against Explanation) Comparison {
	c := Comparison{
		Schema: Schema, Row: row, Against: against, Untraced: row.Untraced - against.Untraced, Sum: row.Sum - against.Sum,
		Steps: align(row.Steps, against.Steps),
	}
	sum := func(e Explanation, class string) steps.Total {
		all := steps.Totals(e.Steps)
		if i := slices.IndexFunc(all, func(t steps.Total) bool { return t.Class == class }); i >= 0 {
			return all[i]
		}
		return steps.Total{Class: class}
	}
	for _, class := range steps.Classes() {
		if a, b := sum(row, class), sum(against, class); a != b {
			c.Classes = append(c.Classes, steps.Total{
				Class: class, Count: a.Count - b.Count, More: a.More - b.More, Sum: a.Sum - b.Sum,
			})
		}
	}
	return c
}

// align pairs the steps of two rows in order: a longest common subsequence of steps of one direction and kind.
func align(a, b []Step) (pairs []Pair) {
	same := func(i, j int) bool { return a[i].Direction == b[j].Direction && a[i].Kind == b[j].Kind }
	length := make([][]int, len(a)+1) // of the remainders' subsequence
	for i := range length {
		length[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if same(i, j) {
				length[i][j] = length[i+1][j+1] + 1
			} else {
				length[i][j] = max(length[i+1][j], length[i][j+1])
			}
		}
	}
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		switch {
		case i < len(a) && j < len(b) && same(i, j) && length[i][j] == length[i+1][j+1]+1:
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

// untraced tells the difference without tracing.
func (c Comparison) untraced() string {
	than, pairs, agree := "less", min(len(c.Row.Rounds), len(c.Against.Rounds)), 0
	if c.Untraced > 0 {
		than = "more"
	}
	for i := range pairs { // of neighbouring runs
		if (c.Row.Rounds[i]-c.Against.Rounds[i] > 0) == (c.Untraced > 0) {
			agree++
		}
	}
	return fmt.Sprintf("Without tracing, a transaction of %s takes %s %s %s, in %d of %d pairs of runs.",
		c.Row.Row, steps.Figure(math.Abs(c.Untraced)), c.Row.Clock, than, agree, pairs)
}

// WriteText writes a comparison as text: both rows by step, the differences by class, and without tracing.
func (c Comparison) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s against %s: request/response over TCP, %s in each step\n\n", c.Row.Suite, c.Row.Row,
		c.Against.Row, c.Row.Clock)
	tab := tabwriter.NewWriter(&b, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(tab, "%s\t%s\tdifference\t\t  request\n", c.Row.Row, c.Against.Row)
	direction := Request
	for _, p := range c.Steps {
		if d := p.any().Direction; d != direction {
			direction = d
			fmt.Fprintf(tab, "\t\t\t\t  %s\n", direction)
		}
		fmt.Fprintf(tab, "%s\t%s\t%s\t%s\t    %s\n", figure(p.Row), figure(p.Against), p.difference(), p.place(), p)
	}
	fmt.Fprint(tab, "\t\t\t\t  both\n")
	for _, t := range c.Classes {
		text := t.Class
		if t.Count != 0 {
			text += fmt.Sprintf(" (%+d)", t.Count)
		}
		fmt.Fprintf(tab, "\t\t%s\t\t    %s\n", steps.Figure(t.Sum), text)
	}
	fmt.Fprintf(tab, "%s\t%s\t%s\t\t    sum\n", steps.Figure(c.Row.Sum), steps.Figure(c.Against.Sum), steps.Figure(c.Sum))
	fmt.Fprintf(tab, "%s\t%s\t%s\t\t    without tracing\n", steps.Figure(c.Row.Untraced), steps.Figure(c.Against.Untraced),
		steps.Figure(c.Untraced))
	if err := tab.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(&b, "\n%s\n", c.untraced())
	for _, e := range []Explanation{c.Row, c.Against} {
		for _, note := range e.notes() {
			fmt.Fprintf(&b, "%s: %s\n", e.Row, note)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// any returns one of the steps.
func (p Pair) any() *Step {
	return cmp.Or(p.Row, p.Against)
}

// difference returns the time that the row takes more, "" where a step is too short to tell.
func (p Pair) difference() string {
	for _, s := range []*Step{p.Row, p.Against} {
		if s != nil && s.Time == 0 {
			return ""
		}
	}
	row, against := cmp.Or(p.Row, &Step{}), cmp.Or(p.Against, &Step{})
	return steps.Figure(row.Time - against.Time)
}

// place returns the place of both steps.
func (p Pair) place() string {
	if p.Row != nil && p.Against != nil && p.Row.Place != p.Against.Place {
		return p.Row.Place + " | " + p.Against.Place
	}
	return p.any().Place
}

// String names both steps, once if they are alike.
func (p Pair) String() string {
	if p.Row == nil || p.Against == nil || p.Row.String() == p.Against.String() {
		return p.any().String()
	}
	return p.Row.String() + " | " + p.Against.String()
}

// figure returns the time of a step, a dash for none.
func figure(s *Step) string {
	if s == nil {
		return "–"
	}
	return steps.StepFigure(*s)
}
