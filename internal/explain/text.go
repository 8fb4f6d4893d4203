// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"text/tabwriter"
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
				fmt.Fprintf(tab, "%s\t%s\t  %s\n", s.Place, figure(s.Median), s)
			}
		}
	}
	fmt.Fprintf(tab, "\nboth\t\t\n")
	for _, c := range e.Totals() {
		fmt.Fprintf(tab, "\t%s\t  %s\n", figure(c.Sum), c)
	}
	if err := tab.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(&b, "\nSum %s. A transaction takes %s without tracing, and %s with its %d events.\n",
		figure(e.Sum), figure(e.Untraced), figure(e.Traced), e.Events)
	for _, p := range e.Counters.Programs {
		fmt.Fprintf(&b, "BPF program %s runs for %s %s, by the kernel's statistics.\n", p.Name, figure(p.Mean), e.Clock)
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

// figure returns a figure without decimals, with commas.
func figure(value float64) string {
	digits := strconv.FormatFloat(math.Round(math.Abs(value)), 'f', 0, 64)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	if value <= -0.5 {
		return "-" + digits
	}
	return digits
}
