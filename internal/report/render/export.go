// SPDX-License-Identifier: Apache-2.0

package render

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"golang.org/x/perf/benchfmt"

	"mustang/internal/report"
	"mustang/internal/result"
)

// CSV writes a line for each row of a file, measured or not. Missing figures are empty.
func CSV(w io.Writer, f result.File) error {
	lines := [][]string{strings.Split("suite,row,workload,flows,link,variant,datapath,target,via,status,unit,samples,"+
		"median,ci95_low,ci95_high,p50_us,p90_us,p99_us,p999_us,cpu_us_per_unit,cpu_unit,lost_share,setup,reason", ",")}
	for _, r := range f.Rows {
		figures := make([]string, 8) // without the median if samples are missing
		lost := ""
		if len(r.Samples) > 0 {
			copy(figures, withInterval(r.Median, r.CI95))
			figures[7] = plainNumber(r.CPUUSPerUnit)
			if r.Workload == result.WorkloadUDPStream || r.Lost > 0 {
				lost = plainNumber(r.LostShare)
			}
		}
		if l := r.LatencyUS; l != nil {
			for i, v := range []float64{l.P50, l.P90, l.P99, l.P999} {
				figures[3+i] = plainNumber(v)
			}
		}
		lines = append(lines, slices.Concat([]string{r.Suite, r.ID, r.Workload, strconv.Itoa(r.Key().Flows), r.Link,
			r.Variant, r.Datapath, r.Target, r.Via, r.Status, r.Unit, strconv.Itoa(len(r.Samples))}, figures,
			[]string{r.CPUUnit, lost, r.Setup.String(), r.Reason}))
	}
	return WriteCSV(w, lines)
}

// WriteCSV writes lines of fields, without control characters. Files may come from others: a field that a
// spreadsheet would take for a formula gets an apostrophe before it.
func WriteCSV(w io.Writer, lines [][]string) error {
	plain := make([][]string, len(lines))
	for i, line := range lines {
		for _, field := range line {
			plain[i] = append(plain[i], unformula(Plain(field)))
		}
	}
	return csv.NewWriter(w).WriteAll(plain)
}

func unformula(field string) string {
	if field == "" || !strings.ContainsRune("=+-@\t\r", rune(field[0])) {
		return field
	}
	if _, err := strconv.ParseFloat(field, 64); err == nil {
		return field
	}
	return "'" + field
}

func plainNumber(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

// Markdown writes a table for each suite and workload of a file, and a list of the rows that were not measured.
func Markdown(w io.Writer, f result.File) error {
	var tables []result.Key // without ID
	lines := map[result.Key][][]string{}
	var missing []string
	for _, r := range f.Rows {
		if r.Status != result.StatusOK {
			missing = append(missing, fmt.Sprintf("- %s %s of %s: %s: %s", code(r.ID), r.Key().Title(), escape(r.Suite),
				r.Status, escape(r.Reason)))
			continue
		}
		k := r.Key()
		k.ID = ""
		if lines[k] == nil {
			tables = append(tables, k)
		}
		interval := ""
		if r.CI95 != nil {
			interval = report.Digits(r.CI95[0]) + " to " + report.Digits(r.CI95[1])
		}
		lines[k] = append(lines[k], []string{code(r.ID), report.Digits(r.Median), escape(r.Unit), interval,
			strconv.Itoa(len(r.Samples)), escape(r.Note)})
	}
	var b strings.Builder
	for _, k := range tables {
		head := []string{"row", "median", "unit", "95 % interval", "samples", "note"}
		markdownTable(&b, escape(k.Suite)+", "+k.Title(), append([][]string{head}, lines[k]...))
	}
	if len(missing) > 0 {
		b.WriteString("## Not measured\n\n" + strings.Join(missing, "\n") + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func markdownTable(b *strings.Builder, title string, lines [][]string) {
	b.WriteString("## " + title + "\n\n")
	for i, cells := range lines {
		b.WriteString("| " + strings.Join(cells, " | ") + " |\n")
		if i == 0 {
			b.WriteString(strings.Repeat("|---", len(cells)) + "|\n")
		}
	}
	b.WriteString("\n")
}

// code prints a name as code, in which Markdown gives characters no other meaning.
func code(name string) string {
	return "`" + strings.NewReplacer("`", "'", "|", "¦").Replace(Plain(name)) + "`"
}

func escape(s string) string {
	var b strings.Builder
	for _, r := range Plain(s) {
		if strings.ContainsRune("\\`*_[]<>#|&~", r) {
			b.WriteByte('\\')
		}
		b.WriteRune(r)
	}
	return b.String()
}

// Plain returns text of a file on one line, without control characters for a terminal.
func Plain(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

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
