// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"mustang/internal/explain/steps"
)

// WriteText writes an explanation as text: the steps of each direction, the sum of each
// class, and what tracing cost.
func (e Explanation) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s: request/response over TCP, %s in each step (median of %d alike transactions of %d)\n",
		e.Suite, e.Row, e.Clock, e.Alike, e.Transactions)
	tab := tabwriter.NewWriter(&b, 0, 8, 2, ' ', tabwriter.AlignRight)
	for _, direction := range []string{Request, Reply} {
		fmt.Fprintf(tab, "\n%s\t\t\n", direction)
		for _, s := range e.Steps {
			if s.Direction == direction {
				fmt.Fprintf(tab, "%s\t%s\t  %s\n", s.Place, steps.Figure(s.Median), s)
			}
		}
	}
	fmt.Fprintf(tab, "\nboth\t\t\n")
	for _, c := range steps.Totals(e.Steps) {
		fmt.Fprintf(tab, "\t%s\t  %s\n", steps.Figure(c.Sum), c)
	}
	if err := tab.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(&b, "\nSum %s. A transaction takes %s without tracing, and %s with its %d events.\n",
		steps.Figure(e.Sum), steps.Figure(e.Untraced), steps.Figure(e.Traced), e.Events)
	for _, p := range e.Counters.Programs {
		fmt.Fprintf(&b, "BPF program %s runs for %s %s, by the kernel's statistics.\n", p.Name, steps.Figure(p.Mean), e.Clock)
	}
	if len(e.Omitted) > 0 {
		fmt.Fprintf(&b, "Not shown, since their order varied: %s. Their time is in the steps before them.\n", strings.Join(e.Omitted, ", "))
	}
	if len(e.Missing) > 0 {
		fmt.Fprintf(&b, "This kernel lacks: %s.\n", strings.Join(e.Missing, ", "))
	}
	_, err := io.WriteString(w, b.String())
	return err
}
