// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"mustang/internal/result"
)

// property has a value for each run; empty if the run's file lacks it.
type property struct {
	Name   string   `json:"name"`
	Values []string `json:"values"`
}

// properties returns a run's machine, settings and method by name, in the order of a comparison. Seed and time are left
// out.
func properties(r result.Run) []map[string]string {
	prefixed := func(prefix string, of map[string]string) map[string]string {
		out := map[string]string{}
		for name, value := range of {
			out[prefix+name] = value
		}
		return out
	}
	cpus := map[string]string{}
	for process, n := range r.Pinning {
		cpus["CPU of "+process] = strconv.Itoa(n)
	}
	return []map[string]string{
		{"cpu": r.Machine.CPUModel}, {"cpus": strconv.Itoa(r.Machine.CPUs)},
		{"memory": fmt.Sprintf("%.1f GiB", float64(r.Machine.MemoryBytes)/(1<<30))}, {"architecture": r.Machine.Arch},
		{"virtualisation": r.Machine.Virtualisation}, {"kernel": r.Kernel}, prefixed("version of ", r.Versions), r.Settings,
		prefixed("offload ", r.Offloads), cpus, {"clock": cmp.Or(r.Clock, result.ClockTime)}, {"suite": r.Suite},
		{"time of a suite": seconds(r.TimeSeconds)}, {"slice": seconds(r.SliceSeconds)},
		{"duration of a sample": seconds(r.DurationSeconds)}, {"warm-up of a sample": seconds(r.WarmupSeconds)},
		{"rounds": strconv.Itoa(r.Rounds)}, {"quick": strconv.FormatBool(r.Quick)},
		{"interrupted": strconv.FormatBool(r.Interrupted)},
	}
}

// differences returns the properties that are not the same in all runs.
func differences(runs []NamedRun) []property {
	out := []property{}
	for i := range properties(result.Run{}) {
		values, names := make([]map[string]string, len(runs)), map[string]string{}
		for at, r := range runs {
			values[at] = properties(r.File.Run)[i]
			maps.Copy(names, values[at])
		}
		for _, name := range slices.Sorted(maps.Keys(names)) {
			p := property{Name: name}
			for _, of := range values {
				p.Values = append(p.Values, of[name])
			}
			if len(slices.Compact(slices.Clone(p.Values))) > 1 {
				out = append(out, p)
			}
		}
	}
	return out
}

// runWarning is to be read before the figures of a run.
type runWarning struct {
	Run   string   `json:"run"`
	Texts []string `json:"texts"`
}

// tooNoisy is the distance from 1 that the interval of an A/A pair reaches in a noisy run.
const tooNoisy = 0.05

// runWarnings returns the warnings of each run that has some.
func runWarnings(runs []NamedRun) []runWarning {
	out := []runWarning{}
	for _, r := range runs {
		var texts []string
		if r.File.Run.Quick {
			texts = append(texts, "quick run")
		}
		if r.File.Run.Interrupted {
			texts = append(texts, "interrupted")
		}
		for _, note := range r.File.Run.Notes {
			if note, disturbed := strings.CutSuffix(note, "."+repeatRun); disturbed && note != "" {
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
			out = append(out, runWarning{r.Name, texts})
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
			times = max(times, c.CI95[1], 1/c.CI95[0])
		}
	}
	return times
}
