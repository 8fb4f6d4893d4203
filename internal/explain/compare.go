// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"io"
	"math"
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
	// Untraced is the median difference of neighbouring runs without tracing, and Sum that
	// of all steps: Row less Against, as all differences.
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
		Schema: Schema, Row: row, Against: against, Sum: row.Sum - against.Sum,
		Steps: align(row.Steps, against.Steps),
	}
	var differences []float64 // of neighbours in time
	for i := range min(len(row.Rounds), len(against.Rounds)) {
		differences = append(differences, row.Rounds[i]-against.Rounds[i])
	}
	c.Untraced = median(differences)
	sum := func(e Explanation, class string) steps.Total {
		for _, t := range steps.Totals(e.Steps) {
			if t.Class == class {
				return t
			}
		}
		return steps.Total{Class: class}
	}
	for _, class := range steps.Classes() {
		a, b := sum(row, class), sum(against, class)
		if a != b {
			c.Classes = append(c.Classes, steps.Total{Class: class, Count: a.Count - b.Count, Sum: a.Sum - b.Sum})
		}
	}
	return c
}

// align pairs the steps of two rows in order: a longest common subsequence of steps of
// one direction and kind.
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

// String tells the difference in two sentences.
func (c Comparison) String() string { return strings.Join(c.sentences(), " ") }

// sentences tell the classes of which one row crosses more, and the whole difference.
func (c Comparison) sentences() []string {
	var saves, adds []string
	var told float64
	for _, t := range c.Classes {
		if t.Count == 0 {
			continue
		}
		told += t.Sum
		count := t
		count.Count = max(t.Count, -t.Count)
		text := fmt.Sprintf("%s (%s)", count, steps.Figure(math.Abs(t.Sum)))
		switch {
		case t.Count < 0:
			saves = append(saves, text)
		default:
			adds = append(adds, text)
		}
	}
	var parts []string
	if len(saves) > 0 {
		parts = append(parts, "saves "+list(saves))
	}
	if len(adds) > 0 {
		parts = append(parts, "adds "+list(adds))
	}
	if len(parts) == 0 {
		parts = []string{"crosses as much as " + c.Against.Row}
	}
	than := "less"
	if c.Untraced > 0 {
		than = "more"
	}
	return []string{
		fmt.Sprintf("%s %s: %s %s.", c.Row.Row, strings.Join(parts, " and "), steps.Figure(math.Abs(told)), c.Row.Clock),
		fmt.Sprintf("Without tracing its transactions take %s %s %s.", steps.Figure(math.Abs(c.Untraced)), c.Row.Clock, than),
	}
}

// list joins words with commas and "and".
func list(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:len(words)-1], ", ") + " and " + words[len(words)-1]
}

// WriteText writes a comparison as text: both rows by step, the differences by class, and
// the sentence.
func (c Comparison) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s against %s: request/response over TCP, %s in each step\n\n", c.Row.Suite, c.Row.Row, c.Against.Row, c.Row.Clock)
	tab := tabwriter.NewWriter(&b, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(tab, "%s\t%s\tdifference\t  request\n", c.Row.Row, c.Against.Row)
	direction := Request
	for _, p := range c.Steps {
		step, difference := p.Row, p.difference()
		if step == nil {
			step = p.Against
		}
		if step.Direction != direction {
			direction = step.Direction
			fmt.Fprintf(tab, "\t\t\t  %s\n", direction)
		}
		fmt.Fprintf(tab, "%s\t%s\t%s\t    %s\n", stepFigure(p.Row), stepFigure(p.Against), steps.Figure(difference), p)
	}
	fmt.Fprint(tab, "\t\t\t  both\n")
	for _, t := range c.Classes {
		text := t.Class
		if t.Count != 0 {
			text += fmt.Sprintf(" (%+d)", t.Count)
		}
		fmt.Fprintf(tab, "\t\t%s\t    %s\n", steps.Figure(t.Sum), text)
	}
	fmt.Fprintf(tab, "%s\t%s\t%s\t    sum\n", steps.Figure(c.Row.Sum), steps.Figure(c.Against.Sum), steps.Figure(c.Sum))
	fmt.Fprintf(tab, "%s\t%s\t%s\t    without tracing\n", steps.Figure(c.Row.Untraced), steps.Figure(c.Against.Untraced), steps.Figure(c.Untraced))
	if err := tab.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(&b, "\n%s\n", strings.Join(c.sentences(), "\n"))
	_, err := io.WriteString(w, b.String())
	return err
}

// difference returns the time that the row takes more.
func (p Pair) difference() (d float64) {
	if p.Row != nil {
		d += p.Row.Median
	}
	if p.Against != nil {
		d -= p.Against.Median
	}
	return d
}

// String names both steps, once if they are alike.
func (p Pair) String() string {
	switch {
	case p.Row == nil:
		return p.Against.String()
	case p.Against == nil || p.Row.String() == p.Against.String():
		return p.Row.String()
	}
	return p.Row.String() + " | " + p.Against.String()
}

// stepFigure returns the time of a step, a dash for none.
func stepFigure(s *Step) string {
	if s == nil {
		return "–"
	}
	return steps.Figure(s.Median)
}
