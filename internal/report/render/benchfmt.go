// SPDX-License-Identifier: Apache-2.0

package render

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode"

	"golang.org/x/perf/benchfmt"

	"mustang/internal/result"
)

// NamedRun is a result file with a name that tells it from others; empty if there are no others.
type NamedRun struct {
	Name string
	File result.File
}

// Benchfmt writes every sample as a line of Go's benchmark format, with machine, clock, suite
// and the name of the run ("run") as its configuration. The units are those of the format:
// Gbit/s and ms become B/s and sec/op.
func Benchfmt(w io.Writer, runs ...NamedRun) error {
	out := benchfmt.NewWriter(w)
	declared := map[string]bool{}
	for _, run := range runs {
		for _, row := range run.File.Rows {
			unit, _, better := benchUnit(row.Unit)
			if row.Status != result.StatusOK || declared[unit] {
				continue
			}
			declared[unit] = true
			meta := &benchfmt.UnitMetadata{
				UnitMetadataKey: benchfmt.UnitMetadataKey{Unit: unit, Key: "better"}, OrigUnit: unit, Value: better,
			}
			if err := out.Write(meta); err != nil {
				return err
			}
		}
	}
	for _, run := range runs {
		if _, err := io.WriteString(w, run.comment()); err != nil {
			return err
		}
		if err := run.write(out); err != nil {
			return err
		}
	}
	return nil
}

func (r NamedRun) write(out *benchfmt.Writer) error {
	head := r.config()
	for _, row := range r.File.Rows {
		if row.Status != result.StatusOK {
			continue
		}
		unit, scale, _ := benchUnit(row.Unit)
		res := benchfmt.Result{
			Config: append(slices.Clone(head), config("suite", row.Suite)), Name: benchName(row), Iters: 1,
			Values: []benchfmt.Value{{Unit: unit}},
		}
		for _, sample := range row.Samples {
			res.Values[0].Value = sample * scale
			if err := out.Write(&res); err != nil {
				return err
			}
		}
	}
	return nil
}

// config returns the configuration of the run. Versions are no part of it: benchstat does not
// compare what differs in configuration.
func (r NamedRun) config() []benchfmt.Config {
	run := r.File.Run
	list := []benchfmt.Config{
		config("goos", "linux"), config("goarch", goarch(run.Machine.Arch)), config("cpu", run.Machine.CPUModel),
		config("clock", cmp.Or(run.Clock, result.ClockTime)), config("run", r.Name),
	}
	return slices.DeleteFunc(list, func(c benchfmt.Config) bool { return len(c.Value) == 0 })
}

// comment describes the run in a line that readers of the format ignore.
func (r NamedRun) comment() string {
	run := r.File.Run
	text := "# kernel " + run.Kernel
	for _, name := range slices.Sorted(maps.Keys(run.Versions)) {
		text += ", " + name + " " + run.Versions[name]
	}
	return Plain(text) + "\n"
}

func config(key, value string) benchfmt.Config {
	return benchfmt.Config{Key: key, Value: []byte(strings.TrimSpace(Plain(value))), File: true}
}

// goarch returns Go's name of an architecture of uname.
func goarch(machine string) string {
	switch machine {
	case "x86_64":
		return "amd64"
	case "aarch64":
		return "arm64"
	}
	return machine
}

// benchName returns the name of a row's benchmark, such as TCPStream/veth/pod-ip/flows=4.
func benchName(row result.Row) benchfmt.Name {
	name := ""
	for _, word := range strings.Split(strings.ToUpper(row.Workload), "_") {
		if len(word) > 3 {
			word = word[:1] + strings.ToLower(word[1:])
		}
		name += word
	}
	name += "/" + strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) || !unicode.IsPrint(r) {
			return '_'
		}
		return r
	}, row.ID)
	if flows := row.Key().Flows; flows > 1 {
		name += fmt.Sprintf("/flows=%d", flows)
	}
	if setup := row.Setup.String(); setup != "" {
		name += "/setup=" + strings.NewReplacer(", ", ",", " ", "_").Replace(setup)
	}
	return benchfmt.Name(name)
}

// benchUnit returns a unit of the format, what a figure is to be multiplied by, and whether
// higher or lower is better.
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
	return strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) || !unicode.IsPrint(r) || r == '=' {
			return '_'
		}
		return r
	}, unit), 1, "lower"
}
