// SPDX-License-Identifier: Apache-2.0

package html

import (
	"math"
	"strings"
	"testing"

	"mustang/internal/report"
	"mustang/internal/testkit"
)

// TestTicks checks that the axis of ratios has round numbers that have room, whatever its range.
func TestTicks(t *testing.T) {
	for _, tc := range []struct {
		low, high float64
		want      string
	}{
		{0.83, 1.02, "1 0.85 0.9 0.95"}, {0.45, 2.1, "1 0.5 2"}, {0.98, 1.02, "1 0.98 0.99 1.01 1.02"},
		{0.01, 2, "1 0.01 0.05 0.1 0.2 0.5 2"},
		{1e-300, 1e300, ""}, {1, 1.01, ""}, {1e-9, 1e-8, ""}, {3e12, 4e12, ""},
	} {
		var got []string
		for _, at := range (&drawing{low: tc.low, high: tc.high, left: 100, right: 350}).ticks() {
			got = append(got, tickLabel(at))
		}
		testkit.Check(t, (tc.want == "" || strings.Join(got, " ") == tc.want) && len(got) <= mostTicks,
			"%g to %g: %q, want %s", tc.low, tc.high, got, tc.want)
	}
}

// TestFarIntervals checks that one wild interval does not flatten a chart, and ends in an arrow.
func TestFarIntervals(t *testing.T) {
	c := report.Chart{Marks: []report.Mark{{Value: 0.9, Low: 1e-6, High: 1.1}, {Value: 1.2, Low: 1.1, High: 1e9}}}
	low, high := bounds(c)
	testkit.Check(t, !(low < 0.5) && !(high > 2) && !(low > 0.9) && !(high < 1.2), "from %g to %g", low, high)
}

// TestColorsOfSeries checks that each color of a series has a symbol, and that an unknown color does not become CSS.
func TestColorsOfSeries(t *testing.T) {
	seen := map[string]bool{}
	for _, color := range []string{"gray", "slate", "orange", "purple", "blue", "teal", "olive", `red)"><script>`} {
		svg := string(draw(report.Chart{Title: "a", Marks: []report.Mark{{Label: "b", Color: color, Value: 1, Low: 1, High: 1,
			Text: "1"}}}))
		outline := symbol(ink(color), 0, 0)
		if strings.Contains(svg, "script") || !strings.Contains(svg, "var(--"+ink(color)+")") || seen[outline] &&
			ink(color) == color {
			t.Errorf("%s:\n%s", color, svg)
		}
		seen[outline] = true
	}
	n := textWidth("WW") - textWidth("ii")
	testkit.Check(t, !math.IsNaN(n) && !(n <= 0), "a wide text is %g wider", n)
}
