// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// none stands for a missing figure.
const none = "–"

// decimals is the number of decimal places that shows the largest of values to four
// significant digits.
func decimals(values ...float64) int {
	largest := 0.0
	for _, v := range values {
		largest = max(largest, math.Abs(v))
	}
	if largest == 0 {
		return 0
	}
	return min(max(3-int(math.Floor(math.Log10(largest))), 0), 6)
}

// fewDecimals is decimals for three significant digits.
func fewDecimals(values ...float64) int { return max(decimals(values...)-1, 0) }

// own is a number of decimal places, or as many more as v needs for three significant
// digits.
func own(v float64, places int) int { return max(places, fewDecimals(v)) }

// amount prints how far a ratio lies from one: in per cent, and as a factor from 2 on.
func amount(ratio float64) string {
	if ratio >= 2 {
		return Factor(ratio)
	}
	return percent(math.Abs(ratio - 1))
}

// Factor prints a ratio of 2 or more.
func Factor(ratio float64) string {
	if ratio >= 100 {
		return number(ratio, 0) + "×"
	}
	return number(ratio, 1) + "×"
}

// Grouped prints v with that many decimal places and commas between thousands.
func Grouped(v float64, places int) string { return number(v, places) }

// number prints v with that many decimal places and commas between thousands.
func number(v float64, places int) string {
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

// interval prints both ends.
func interval(ci *[2]float64, places int) string {
	if ci == nil {
		return "too few rounds"
	}
	return number(ci[0], places) + " to " + number(ci[1], places)
}

// ratio prints a ratio to a thousandth.
func ratio(v float64) string { return strconv.FormatFloat(v, 'f', 3, 64) }

// percent prints a share as per cent: 0.251 is "25.1 %", with a space that
// does not break.
func percent(share float64) string {
	places := 1
	if math.Abs(share) < 0.00095 {
		places = 2
	}
	return number(share*100, places) + "\u00a0%"
}

// memory prints a size in GiB or MiB.
func memory(n uint64) string {
	if n >= 1<<30 {
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	}
	return fmt.Sprintf("%.0f MiB", float64(n)/(1<<20))
}

// seconds prints a duration the way a command line takes it: "2s", "500ms".
func seconds(s float64) string {
	if s < 1 {
		return strconv.FormatFloat(s*1000, 'f', -1, 64) + "ms"
	}
	return strconv.FormatFloat(s, 'f', -1, 64) + "s"
}

// count prints n with a noun in the right number.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return number(float64(n), 0) + " " + noun + "s"
}

// times prints how often something happened.
func times(n int) string {
	if n == 1 {
		return "once"
	}
	return number(float64(n), 0) + " times"
}
