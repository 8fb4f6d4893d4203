// SPDX-License-Identifier: Apache-2.0

package compare

import (
	"cmp"
	"fmt"
	"math"
	"strings"
	"unicode"
	"unicode/utf8"

	"mustang/internal/result"
)

// Warning is what a reader must know of a run before its figures.
type Warning struct {
	Run   string   `json:"run"`
	Texts []string `json:"texts"`
}

// tooNoisy is the distance from 1 that the interval of an A/A pair reaches in a noisy run.
const tooNoisy = 0.05

// repeatRun ends the notes on what disturbed a run.
const repeatRun = ". Repeat the run on a quiet machine."

// warnings returns those of the runs that have some.
func warnings(runs []Run) []Warning {
	out := []Warning{}
	for _, r := range runs {
		var texts []string
		if r.File.Run.Quick {
			texts = append(texts, "quick run")
		}
		if r.File.Run.Interrupted {
			texts = append(texts, "interrupted")
		}
		for _, note := range r.File.Run.Notes {
			if note, disturbed := strings.CutSuffix(note, repeatRun); disturbed && note != "" {
				first, size := utf8.DecodeRuneInString(note)
				texts = append(texts, string(unicode.ToLower(first))+note[size:])
			}
		}
		if times := repeated(r.File.Run.Comparisons); times >= 2 {
			texts = append(texts, fmt.Sprintf("the same path measured twice may differ by a factor of %.1f", times))
		} else if times-1 > tooNoisy {
			texts = append(texts, fmt.Sprintf("the same path measured twice may differ by %.1f %%", (times-1)*100))
		}
		if len(texts) > 0 {
			out = append(out, Warning{r.Name, texts})
		}
	}
	return out
}

// repeated returns the factor by which two measurements of a path in the kernel may differ, by the intervals of the A/A
// pairs; 1 without any. Other paths are noisy on any machine.
func repeated(comparisons []result.Comparison) float64 {
	times := 1.0
	for _, c := range comparisons {
		if c.AA && c.CI95 != nil && c.CI95[0] > 0 && cmp.Or(c.Class, result.ClassKernel) == result.ClassKernel {
			times = math.Max(times, math.Max(c.CI95[1], 1/c.CI95[0]))
		}
	}
	return times
}
