// SPDX-License-Identifier: Apache-2.0

package render

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode"

	"golang.org/x/perf/benchfmt"

	"mustang/internal/report"
	"mustang/internal/result"
)

// Benchfmt writes every sample as a line of Go's benchmark format, with machine, clock, suite and the name of the run
// ("run") as its configuration. Gbit/s and ms become the format's B/s and sec/op. Versions are in a comment:
// benchstat does not compare what differs in configuration.
func Benchfmt(w io.Writer, runs ...report.NamedRun) error {
	var b bytes.Buffer
	out := benchfmt.NewWriter(&b)
	write := func(r benchfmt.Record) { _ = out.Write(r) } // a buffer takes all
	declared := map[string]bool{}
	for _, named := range runs {
		run := named.File.Run
		text := "# kernel " + run.Kernel
		for _, name := range slices.Sorted(maps.Keys(run.Versions)) {
			text += ", " + name + " " + run.Versions[name]
		}
		b.WriteString(Plain(text) + "\n")
		for _, row := range named.File.Rows {
			if row.Status != result.StatusOK {
				continue
			}
			unit, scale, better := benchUnit(row.Unit)
			if !declared[unit] {
				declared[unit] = true
				write(&benchfmt.UnitMetadata{UnitMetadataKey: benchfmt.UnitMetadataKey{Unit: unit, Key: "better"},
					OrigUnit: unit, Value: better})
			}
			line := benchfmt.Result{Name: benchName(row), Iters: 1, Values: []benchfmt.Value{{Unit: unit}}}
			arch := cmp.Or(map[string]string{"x86_64": "amd64", "aarch64": "arm64"}[run.Machine.Arch], run.Machine.Arch)
			for _, c := range [][2]string{{"goos", "linux"}, {"goarch", arch},
				{"cpu", run.Machine.CPUModel}, {"clock", cmp.Or(run.Clock, result.ClockTime)}, {"run", named.Name},
				{"suite", row.Suite}} {
				if value := strings.TrimSpace(Plain(c[1])); value != "" {
					line.Config = append(line.Config, benchfmt.Config{Key: c[0], Value: []byte(value), File: true})
				}
			}
			for _, sample := range row.Samples {
				line.Values[0].Value = sample * scale
				write(&line)
			}
		}
	}
	_, err := w.Write(b.Bytes())
	return err
}

func benchName(row result.Row) benchfmt.Name {
	name := ""
	for _, word := range strings.Split(strings.ToUpper(row.Workload), "_") {
		if len(word) > 3 {
			word = word[:1] + strings.ToLower(word[1:])
		}
		name += word
	}
	name += "/" + oneWord(row.ID)
	if flows := row.Key().Flows; flows > 1 {
		name += fmt.Sprintf("/flows=%d", flows)
	}
	if setup := row.Setup.String(); setup != "" {
		name += "/setup=" + strings.NewReplacer(", ", ",", " ", "_").Replace(setup)
	}
	return benchfmt.Name(name)
}

func benchUnit(unit string) (name string, scale float64, better string) {
	switch unit {
	case result.UnitGbit:
		return "B/s", 1e9 / 8, "higher"
	case result.UnitTransactions, result.UnitServices:
		return unit, 1, "higher"
	case result.UnitMilliseconds:
		return "sec/op", 1e-3, "lower"
	case result.UnitMicroseconds:
		return "sec/op", 1e-6, "lower"
	}
	return strings.ReplaceAll(oneWord(unit), "=", "_"), 1, "lower"
}

func oneWord(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) || !unicode.IsPrint(r) {
			return '_'
		}
		return r
	}, s)
}
