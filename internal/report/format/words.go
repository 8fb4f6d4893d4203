// SPDX-License-Identifier: Apache-2.0

package format

import (
	"fmt"
	"strings"
	"time"
	"unicode"
)

// List joins names as a sentence does.
func List(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1]
}

// Verb returns the form of a verb for a number of things.
func Verb(n int, one, several string) string {
	if n == 1 {
		return one
	}
	return several
}

// KeepTogether puts no-break spaces into names and figures.
func KeepTogether(s string) string {
	return strings.NewReplacer("95 % interval", "95\u00a0%\u00a0interval", " Gbit/s", "\u00a0Gbit/s", " ms", "\u00a0ms",
		" instructions/", "\u00a0instructions/").Replace(s)
}

// UpperFirst writes the first word of a sentence with a capital letter, unless the
// word is a row's name.
func UpperFirst(s string) string {
	for _, word := range []string{"no ", "not ", "of ", "nothing ", "too ", "slower ", "faster ", "more ", "less ", "fewer "} {
		if strings.HasPrefix(s, word) {
			return strings.ToUpper(s[:1]) + s[1:]
		}
	}
	return s
}

// LowerFirst writes a title inside a sentence, leaving acronyms such as UDP.
func LowerFirst(s string) string {
	if len(s) > 1 && s[1] >= 'A' && s[1] <= 'Z' {
		return s
	}
	return strings.ToLower(s[:min(1, len(s))]) + s[min(1, len(s)):]
}

// Clean makes a string from a file safe to print: no line break, terminal
// sequence or other control character survives, nor one without a width, which makes names look alike.
func Clean(s string) string {
	return strings.Join(strings.Fields(strings.Map(func(r rune) rune {
		if unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "�"))), " ")
}

// FarFromOne reports whether a ratio is given by its three significant digits.
func FarFromOne(ratio float64) bool { return ratio >= 2 || ratio < 0.1 && ratio > 0 }

// ShortRatio prints a ratio in few characters. Far from one it has three significant digits.
func ShortRatio(r float64, places int) string {
	if FarFromOne(r) {
		return Number(r, FewDecimals(r))
	}
	return Number(r, places)
}

// Shares prints a range of ratios in per cent.
func Shares(least, most float64) string {
	places := 0
	if least < 0.02 || least > 0.95 && most < 1.05 {
		places = 1
	}
	if a, b := Number(100*least, places), Number(100*most, places); a != b {
		return a + " to " + b + "\u00a0%"
	}
	return Number(100*least, places) + "\u00a0%"
}

// CleanAll cleans each string.
func CleanAll(texts []string) []string {
	var out []string
	for _, s := range texts {
		out = append(out, Clean(s))
	}
	return out
}

// Timestamp prints a time; empty if there is none.
func Timestamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05 UTC")
}

// SomeOf lists at most n of names, and counts the others.
func SomeOf(names []string, n int) string {
	switch more := len(names) - n; {
	case more <= 0:
		return strings.Join(names, ", ")
	case n == 0 && more == 1:
		return "1 path"
	case n == 0:
		return fmt.Sprintf("%d paths", more)
	default:
		return fmt.Sprintf("%s and %d more", strings.Join(names[:n], ", "), more)
	}
}
