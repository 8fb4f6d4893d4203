// SPDX-License-Identifier: Apache-2.0

package compare

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"mustang/internal/result"
)

// differences returns the properties that are not the same in all runs: the machine first,
// then its settings, then the method. The seed and the time of a run are no properties.
func differences(runs []Run) []Property {
	out := []Property{}
	add := func(name string, value func(result.Run) string) {
		p := Property{Name: name}
		for _, r := range runs {
			p.Values = append(p.Values, value(r.File.Run))
		}
		if slices.ContainsFunc(p.Values, func(v string) bool { return v != p.Values[0] }) {
			out = append(out, p)
		}
	}
	addAll := func(kind string, of func(result.Run) map[string]string) {
		names := map[string]bool{}
		for _, r := range runs {
			for name := range of(r.File.Run) {
				names[name] = true
			}
		}
		for _, name := range slices.Sorted(maps.Keys(names)) {
			add(kind+name, func(r result.Run) string { return of(r)[name] })
		}
	}
	add("cpu", func(r result.Run) string { return r.Machine.CPUModel })
	add("cpus", func(r result.Run) string { return strconv.Itoa(r.Machine.CPUs) })
	add("memory", func(r result.Run) string { return fmt.Sprintf("%.1f GiB", float64(r.Machine.MemoryBytes)/(1<<30)) })
	add("architecture", func(r result.Run) string { return r.Machine.Arch })
	add("virtualisation", func(r result.Run) string { return r.Machine.Virtualisation })
	add("kernel", func(r result.Run) string { return r.Kernel })
	addAll("version of ", func(r result.Run) map[string]string { return r.Versions })
	addAll("", func(r result.Run) map[string]string { return r.Settings })
	addAll("offload ", func(r result.Run) map[string]string { return r.Offloads })
	addAll("CPU of ", func(r result.Run) map[string]string {
		cpus := map[string]string{}
		for process, n := range r.Pinning {
			cpus[process] = strconv.Itoa(n)
		}
		return cpus
	})
	add("clock", func(r result.Run) string { return cmp.Or(r.Clock, result.ClockTime) })
	add("suite", func(r result.Run) string { return r.Suite })
	for _, p := range []struct {
		name  string
		value func(result.Run) float64
	}{
		{"time of a suite", func(r result.Run) float64 { return r.TimeSeconds }},
		{"slice", func(r result.Run) float64 { return r.SliceSeconds }},
		{"duration of a sample", func(r result.Run) float64 { return r.DurationSeconds }},
		{"warm-up of a sample", func(r result.Run) float64 { return r.WarmupSeconds }},
	} {
		add(p.name, func(r result.Run) string { return seconds(p.value(r)) })
	}
	add("rounds", func(r result.Run) string { return strconv.Itoa(r.Rounds) })
	add("quick", func(r result.Run) string { return strconv.FormatBool(r.Quick) })
	add("interrupted", func(r result.Run) string { return strconv.FormatBool(r.Interrupted) })
	return out
}

// seconds prints a time; that of 0 is none.
func seconds(s float64) string {
	switch {
	case s == 0:
		return ""
	case s < 1:
		return strconv.FormatFloat(s*1000, 'g', 6, 64) + "ms"
	}
	return strconv.FormatFloat(s, 'g', 6, 64) + "s"
}
