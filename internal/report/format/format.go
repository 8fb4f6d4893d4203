// SPDX-License-Identifier: Apache-2.0

// Package format prints figures and words of reports: figures with the digits that they need and commas between thousands, names free of
// control characters.
package format

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// None stands for a missing figure.
const None = "–"

// Decimals is the number of decimal places that shows the largest of values to four
// significant digits.
func Decimals(values ...float64) int {
	largest := 0.0
	for _, v := range values {
		largest = max(largest, math.Abs(v))
	}
	if largest == 0 {
		return 0
	}
	return min(max(3-int(math.Floor(math.Log10(largest))), 0), 6)
}

// FewDecimals is Decimals for three significant digits.
func FewDecimals(values ...float64) int { return max(Decimals(values...)-1, 0) }

// Own is a number of decimal places, or as many more as v needs for three significant
// digits.
func Own(v float64, places int) int { return max(places, FewDecimals(v)) }

// Short prints v rounded to three significant digits.
func Short(v float64) string {
	if a := math.Abs(v); a >= 1000 && a < 1e15 {
		unit := math.Pow10(int(math.Floor(math.Log10(a))) - 2)
		v = math.Round(v/unit) * unit
	}
	return Number(v, FewDecimals(v))
}

// Amount prints how far a ratio lies from one: in per cent, and as a factor from 2 on.
func Amount(ratio float64) string {
	if ratio >= 2 {
		return Factor(ratio)
	}
	return Percent(math.Abs(ratio - 1))
}

// Factor prints a ratio of 2 or more.
func Factor(ratio float64) string {
	if ratio >= 100 {
		return Number(ratio, 0) + "×"
	}
	return Number(ratio, 1) + "×"
}

// Number prints v with that many decimal places and commas between thousands.
func Number(v float64, places int) string {
	text := strconv.FormatFloat(math.Abs(v), 'f', places, 64)
	whole, fraction, _ := strings.Cut(text, ".")
	for i := len(whole) - 3; i > 0; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	if fraction != "" {
		whole += "." + fraction
	}
	if v < 0 && strings.Trim(whole, "0.,") != "" {
		return "-" + whole
	}
	return whole
}

// Interval prints both ends.
func Interval(ci *[2]float64, places int) string {
	if ci == nil {
		return "too few rounds"
	}
	return Number(ci[0], places) + " to " + Number(ci[1], places)
}

// Ratio prints a ratio to a thousandth.
func Ratio(v float64) string { return strconv.FormatFloat(v, 'f', 3, 64) }

// Percent prints a share as per cent: 0.251 is "25.1 %", with a space that
// does not break.
func Percent(share float64) string {
	places := 1
	if math.Abs(share) < 0.00095 {
		places = 2
	}
	return Number(share*100, places) + "\u00a0%"
}

// Memory prints a size in GiB or MiB.
func Memory(n uint64) string {
	if n >= 1<<30 {
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	}
	return fmt.Sprintf("%.0f MiB", float64(n)/(1<<20))
}

// Seconds prints a duration the way a command line takes it: "2s", "500ms".
func Seconds(s float64) string {
	if s < 1 {
		return strconv.FormatFloat(s*1000, 'f', -1, 64) + "ms"
	}
	return strconv.FormatFloat(s, 'f', -1, 64) + "s"
}

// Count prints n with a noun in the right number.
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return Number(float64(n), 0) + " " + noun + "s"
}

// Times prints how often something happened.
func Times(n int) string {
	if n == 1 {
		return "once"
	}
	return Number(float64(n), 0) + " times"
}
