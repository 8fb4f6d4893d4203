// SPDX-License-Identifier: Apache-2.0

package html

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

// TestRatioTicks checks that the axis of ratios has round numbers that have room, whatever its range.
func TestRatioTicks(t *testing.T) {
	for _, tc := range []struct {
		low, high float64
		want      string
	}{
		{0.83, 1.02, "0.85 0.9 0.95 1"}, {0.45, 2.1, "0.5 0.8 1 1.25 2"}, {0.98, 1.02, "0.98 0.99 1 1.01 1.02"}, {0.01, 2, "0.01 0.03 0.1 0.3 1"},
	} {
		var got []string
		for _, tick := range ratioTicks(tc.low, tc.high, func(text string) float64 { return 0.03 * float64(len(text)) }) {
			got = append(got, tick.Label)
		}
		if strings.Join(got, " ") != tc.want {
			t.Errorf("%g to %g: %q, want %s", tc.low, tc.high, got, tc.want)
		}
	}
	for _, r := range [][2]float64{{1e-300, 1e300}, {1, 1.01}, {1e-9, 1e-8}, {3e12, 4e12}} {
		if n := len(ratioTicks(r[0], r[1], func(string) float64 { return 0.1 })); n > mostRatioTicks {
			t.Errorf("%v: %d ticks", r, n)
		}
	}
}

// TestFarIntervals checks that one wild interval does not flatten a chart.
func TestFarIntervals(t *testing.T) {
	low, high := bounds(report.Chart{Shape: report.ShapeForest, Log: true, Marks: []report.Mark{
		{Value: 0.9, Low: 1e-6, High: 1.1}, {Value: 1.2, Low: 1.1, High: 1e9}}})
	if low < 0.5 || high > 2 || low > 0.9 || high < 1.2 {
		t.Errorf("from %g to %g", low, high)
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
		if svg := string(newDrawer().Draw(c, "")); !strings.Contains(svg, "var(--"+color+")") || strings.Contains(svg, "#0100") {
			t.Errorf("no bar in %s:\n%s", color, svg)
		}
		if seen[inkOf(color)] {
			t.Errorf("%s is the color of another series", color)
		}
		seen[inkOf(color)] = true
	}
}
