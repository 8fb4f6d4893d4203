// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode"

	"mustang/internal/result"
)

// None stands for a missing figure.
const None = "–"

// decimals is the number of decimal places that shows the largest of values to four significant digits.
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

func fewDecimals(v float64) int { return max(decimals(v)-1, 0) }

// Digits prints a number to four digits, or to all before the point.
func Digits(v float64) string { return Number(v, decimals(v)) }

func short(v float64) string {
	if a := math.Abs(v); a >= 1000 && a < 1e15 {
		unit := math.Pow10(int(math.Floor(math.Log10(a))) - 2)
		v = math.Round(v/unit) * unit
	}
	return Number(v, fewDecimals(v))
}

func factor(ratio float64) string {
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
	if v < 0 && strings.Trim(text, "0.") != "" {
		whole = "-" + whole
	}
	return joined(".", whole, fraction)
}

func integer[T int | uint64](n T) string { return Number(float64(n), 0) }
func general(v float64) string           { return strconv.FormatFloat(v, 'g', 2, 64) }

// positive prints a figure with three significant digits; None for 0 or less.
func positive(v float64) string {
	if v <= 0 {
		return None
	}
	return Number(v, fewDecimals(v))
}

func intervalText(ci *[2]float64, places int) string {
	if ci == nil {
		return "too few rounds"
	}
	return Number(ci[0], places) + " to " + Number(ci[1], places)
}

func percentOf(share float64) string { return Number(share*100, percentPlaces(share)) + "\u00a0%" }

func percentPlaces(share float64) int {
	if math.Abs(share) < 0.00095 {
		return 2
	}
	return 1
}

func memorySize(n uint64) string {
	switch {
	case n == 0:
		return ""
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	}
	return fmt.Sprintf("%.0f MiB", float64(n)/(1<<20))
}

// seconds prints a duration as a command line takes it: "2s", "500ms". It is empty for 0.
func seconds(s float64) string {
	switch {
	case s == 0:
		return ""
	case s < 1:
		return strconv.FormatFloat(s*1000, 'g', 6, 64) + "ms"
	}
	return strconv.FormatFloat(s, 'g', 6, 64) + "s"
}

func countOf(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	if strings.HasSuffix(noun, "ch") {
		noun += "e"
	}
	return integer(n) + " " + noun + "s"
}

func timestamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05 UTC")
}

// joined joins the parts that are not empty.
func joined(separator string, parts ...string) string {
	return strings.Join(filter(parts, func(s string) bool { return s != "" }), separator)
}

func inWords(names []string) string {
	last := max(len(names)-1, 0)
	return joined(" and ", strings.Join(names[:last], ", "), strings.Join(names[last:], ""))
}

func someOf(names []string, n int) string {
	if len(names) <= n {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:n], ", "), len(names)-n)
}

// LowerFirst writes a title inside a sentence, leaving acronyms such as UDP.
func LowerFirst(s string) string {
	if s == "" || len(s) > 1 && s[1] >= 'A' && s[1] <= 'Z' {
		return s
	}
	return strings.ToLower(s[:1]) + s[1:]
}

func upper(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

// clean removes line breaks, terminal sequences, other control characters and characters without a width.
func clean(s string) string {
	return strings.Join(strings.Fields(strings.Map(func(r rune) rune {
		if unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "�"))), " ")
}

func cleaned(v reflect.Value) reflect.Value {
	out := reflect.New(v.Type()).Elem()
	out.Set(v)
	switch v.Kind() {
	case reflect.String:
		out.SetString(clean(v.String()))
	case reflect.Pointer:
		if !v.IsNil() {
			out.Set(cleaned(v.Elem()).Addr())
		}
	case reflect.Map:
		out.Set(reflect.MakeMap(v.Type()))
		for key, value := range v.Seq2() {
			out.SetMapIndex(cleaned(key), cleaned(value))
		}
	case reflect.Slice:
		if of := v.Type().Elem(); of.Kind() == reflect.Float64 || of == reflect.TypeFor[result.Position]() {
			break // which are long
		}
		out.Set(reflect.MakeSlice(v.Type(), v.Len(), v.Len()))
		for i := range v.Len() {
			out.Index(i).Set(cleaned(v.Index(i)))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if out.Field(i).CanSet() {
				out.Field(i).Set(cleaned(v.Field(i)))
			}
		}
	default:
	}
	return out
}

func convert[T, U any](items []T, to func(T) U) (out []U) {
	for _, item := range items {
		out = append(out, to(item))
	}
	return out
}

func filter[T any](items []T, keep func(T) bool) (out []T) {
	for _, item := range items {
		if keep(item) {
			out = append(out, item)
		}
	}
	return out
}

// byReason gathers items by a reason, in the order of the first of each.
type byReason[T any] struct {
	reasons []string
	items   map[string][]T
}

func (b *byReason[T]) add(reason string, item T) {
	if b.items == nil {
		b.items = map[string][]T{}
	}
	if b.items[reason] == nil {
		b.reasons = append(b.reasons, reason)
	}
	b.items[reason] = append(b.items[reason], item)
}

func (b *byReason[T]) texts(text func(reason string, items []T) string) []string {
	return convert(b.reasons, func(reason string) string { return text(reason, b.items[reason]) })
}
