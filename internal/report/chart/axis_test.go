// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"math"
	"strings"
	"testing"

	"mustang/internal/report"
)

// TestTicks checks that an axis has some round numbers, and few, whatever its range.
func TestTicks(t *testing.T) {
	for _, r := range [][2]float64{
		{0, 60}, {0, 25000}, {0.9, 1.1}, {-1, 2}, {0, 1e15}, {-1e15, 1e15}, {1e15, 1e15 + 1}, {0, 1e-300}, {1e15 - 0.1, 1e15}, {0, math.MaxFloat64},
	} {
		if n := len(linearTicks(r[0], r[1])); n > maxTicks || n < 2 && r[1]-r[0] < 1e14 && r[0] == 0 {
			t.Errorf("%v: %d ticks", r, n)
		}
	}
	for _, r := range [][2]float64{{1, 100}, {1e-6, 1e15}, {5e-324, math.MaxFloat64}, {3, 4}} {
		if n := len(logTicks(r[0], r[1])); n > 3*maxTicks+2 {
			t.Errorf("%v: %d ticks", r, n)
		}
	}
}

func TestTickLabel(t *testing.T) {
	for _, tc := range []struct{ got, want string }{
		{tickLabel(25000, 0, true), "25k"},
		{tickLabel(0, 0, true), "0"},
		{tickLabel(0.95, 2, false), "0.95"},
		{tickLabel(2500, 0, false), "2,500"},
		{logLabel(10000), "10,000"},
		{logLabel(1000000), "1,000,000"},
		{logLabel(100), "100"},
		{logLabel(0.02), "0.02"},
		{tickLabel(math.Copysign(0, -1), 1, false), "0.0"},
	} {
		if tc.got != tc.want {
			t.Errorf("got %q, want %q", tc.got, tc.want)
		}
	}
}

// TestColorsOfSeries checks that each color of a series is one of its own.
func TestColorsOfSeries(t *testing.T) {
	seen := map[ink]bool{}
	for _, color := range []string{"gray", "slate", "orange", "purple", "blue", "teal", "olive"} {
		c := report.Chart{Shape: report.ShapeBar, Title: "a", Marks: []report.Mark{{Label: "b", Color: color, Value: 1, Text: "1"}}}
		if svg := string(NewDrawer().Draw(c, "")); !strings.Contains(svg, "var(--"+color+")") || strings.Contains(svg, "#0100") {
			t.Errorf("no bar in %s:\n%s", color, svg)
		}
		if seen[inkOf(color)] {
			t.Errorf("%s is the color of another series", color)
		}
		seen[inkOf(color)] = true
	}
}
