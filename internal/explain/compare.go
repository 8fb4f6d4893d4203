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

// sentences tell the classes of which one row crosses more, what the others differ by, and the whole difference.
func (c Comparison) sentences() []string {
	var parts, same []string
	var told, rest float64
	for _, t := range c.Classes {
		switch {
		case t.Count != 0:
			told += t.Sum
			parts = append(parts, c.difference(t))
		case t.Sum != 0:
			rest += t.Sum
			same = append(same, fmt.Sprintf("%s %s", t.Class, signed(t.Sum)))
		}
	}
	first := fmt.Sprintf("%s crosses as much as %s.", c.Row.Row, c.Against.Row)
	switch len(parts) {
	case 0:
	case 1:
		first = fmt.Sprintf("%s %s.", c.Row.Row, parts[0])
	default:
		last := len(parts) - 1
		first = fmt.Sprintf("%s %s and %s: %s %s.", c.Row.Row, strings.Join(parts[:last], ", "), parts[last], signed(told), c.Row.Clock)
	}
	out := []string{first}
	if math.Abs(rest) > math.Abs(c.Sum)/10 {
		out = append(out, fmt.Sprintf("Steps that occur as often in both: %s %s (%s).", signed(rest), c.Row.Clock, strings.Join(same, ", ")))
	}
	than, pairs, agree := "less", min(len(c.Row.Rounds), len(c.Against.Rounds)), 0
	if c.Untraced > 0 {
		than = "more"
	}
	for i := range pairs { // of neighbouring runs
		if (c.Row.Rounds[i]-c.Against.Rounds[i] > 0) == (c.Untraced > 0) {
			agree++
		}
	}
	return append(out, fmt.Sprintf("Without tracing its transactions take %s %s %s, in %d of %d pairs of runs.",
		steps.Figure(math.Abs(c.Untraced)), c.Row.Clock, than, agree, pairs))
}

// difference tells the difference of a class in words.
func (c Comparison) difference(t steps.Total) string {
	words := map[string][2]string{
		steps.Sockets: {"crosses", "socket"}, steps.Devices: {"crosses", "device"}, steps.Softirqs: {"runs", "softirq"},
		steps.Routing: {"looks up", "route"}, steps.Netfilter: {"passes", "netfilter hook"},
		steps.Programs: {"runs", "BPF program"}, steps.Threads: {"makes", "thread switch"},
	}[t.Class]
	than := "more"
	if t.Count < 0 {
		than = "fewer"
	}
	return fmt.Sprintf("%s %s %s (%s %s)", words[0], steps.Number(max(t.Count, -t.Count), words[1]), than, signed(t.Sum), c.Row.Clock)
}

// WriteText writes a comparison as text: both rows by step, the differences by class, and the sentences.
func (c Comparison) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s against %s: request/response over TCP, %s in each step\n\n", c.Row.Suite, c.Row.Row, c.Against.Row, c.Row.Clock)
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
	fmt.Fprintf(tab, "%s\t%s\t%s\t\t    without tracing\n", steps.Figure(c.Row.Untraced), steps.Figure(c.Against.Untraced), steps.Figure(c.Untraced))
	if err := tab.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(&b, "\n%s\n", strings.Join(c.sentences(), "\n"))
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

// signed returns a figure with its sign.
func signed(value float64) string {
	if value >= 0.5 {
		return "+" + steps.Figure(value)
	}
	return steps.Figure(value)
}

// figure returns the time of a step, a dash for none.
func figure(s *Step) string {
	if s == nil {
		return "–"
	}
	return steps.StepFigure(*s)
}
