// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/result"
	"mustang/internal/testkit"
)

// soundFile is a result file.
const soundFile = "../../internal/report/testdata/made-up.json"

// checkSchema holds the latest result below a directory to the JSON Schema.
func checkSchema(t *testing.T, dir string) {
	t.Helper()
	path := testkit.Must(result.FindFile(dir))(t)
	file := testkit.Must(os.Open(path))(t)
	defer file.Close()
	value := testkit.Must(jsonschema.UnmarshalJSON(file))(t)
	compiler := jsonschema.NewCompiler()
	compiler.AssertFormat()
	schema := testkit.Must(compiler.Compile(resultsSchema))(t)
	err := schema.Validate(value)
	testkit.Check(t, err == nil, "%s: %v", path, err)
}

func writeRun(t *testing.T, dir, name string, file result.File) string {
	t.Helper()
	data := testkit.Must(result.Marshal(file))(t)
	path := filepath.Join(dir, name)
	testkit.Succeed(t, os.MkdirAll(path, 0o700))
	testkit.Succeed(t, os.WriteFile(filepath.Join(path, result.FileName), data, 0o600))
	return path
}

func slower(f result.File, factor float64) result.File {
	f.Rows = append([]result.Row{}, f.Rows...)
	for i := range f.Rows {
		r := &f.Rows[i]
		r.Samples = append([]float64{}, r.Samples...)
		for n := range r.Samples {
			r.Samples[n] *= factor
		}
		r.Median *= factor
		if r.CI95 != nil {
			r.CI95 = &[2]float64{r.CI95[0] * factor, r.CI95[1] * factor}
		}
	}
	return f
}

// compareCase has arguments of compare, its exit code and words of its output.
type compareCase struct {
	args   []string
	code   int
	stdout []string
	stderr string
}

func checkCompare(t *testing.T, env map[string]string, cases []compareCase) {
	t.Helper()
	for _, tt := range cases {
		code, stdout, stderr := command(t, env, append([]string{"compare"}, tt.args...)...)
		if code != tt.code || !strings.Contains(stderr, tt.stderr) || strings.Count(stderr, "\n") != min(len(tt.stderr), 1) {
			t.Errorf("%q: exit code %d, want %d: %q", tt.args, code, tt.code, stderr)
		}
		for _, want := range tt.stdout {
			testkit.Check(t, strings.Contains(stdout, want), "%q: no %q in %s", tt.args, want, stdout)
		}
		testkit.Check(t, tt.stdout != nil || stdout == "", "%q: stdout %q", tt.args, stdout)
	}
}

// TestCompare runs the command on files with fixed differences.
func TestCompare(t *testing.T) {
	sound := testkit.Must(result.Read(soundFile))(t)
	counted := testkit.Must(result.Read("../../internal/report/testdata/counted.json"))(t)
	dir := t.TempDir()
	old, worse := writeRun(t, dir, "20260101T000000Z", sound), writeRun(t, dir, "20260102T000000Z", slower(sound, 0.9))
	vm, other := writeRun(t, dir, "vm", counted), sound
	other.Rows = []result.Row{sound.Rows[0]}
	other.Rows[0].ID = "another"
	foreign := writeRun(t, dir, "foreign", other)
	testkit.Succeed(t, os.Symlink(filepath.Base(worse), filepath.Join(dir, result.LatestName)))
	env := map[string]string{envStateDir: filepath.Join(t.TempDir(), "state")}
	checkCompare(t, env, []compareCase{
		{[]string{old, dir}, exitDone, []string{"20260101T000000Z", "20260102T000000Z", "-10.0 %", "<0.001", "geomean",
			"Mann-Whitney", "are the same"}, ""},
		{[]string{old, worse, "--threshold", "5%"}, exitWorse, []string{"-10.0 %"},
			"worse by more than 5%: loopback tcp_stream, "},
		{[]string{old, worse, "--threshold", "12.5%"}, exitDone, []string{"-10.0 %"}, ""},
		{[]string{worse, old, "--threshold", "5%"}, exitDone, []string{"+11.1 %"}, ""},
		{[]string{old, old, "--threshold", "0.01%"}, exitFailed, []string{"within", "20260101T000000Z"},
			"mustang: no row can be judged by 0.01%: intervals of loopback tcp_stream, "},
		{[]string{old, old, "--threshold", "0.01%"}, exitFailed, []string{"within"},
			" more are wider; repeat both runs with a longer --time\n"},
		{[]string{old, old, worse, "-o", "wide"}, exitDone, []string{"mann-whitney, 10 and 10 samples", "within",
			"-10.0 %"}, ""},
		{[]string{old, worse, "-o", "csv"}, exitDone,
			[]string{"pod-links,loopback,tcp_stream,1,Gbit/s,20260101T000000Z,20260102T000000Z,"}, ""},
		{[]string{old, worse, "-o", "markdown"}, exitDone, []string{"| loopback | "}, ""},
		{[]string{old, worse, "-o", "benchfmt"}, exitDone, []string{"run: 20260101T000000Z\n", "run: 20260102T000000Z\n",
			"BenchmarkTCPStream/loopback 1 "}, ""},
		{[]string{old, vm}, exitFailed, nil, "vm counted instructions"},
		{[]string{vm, old, "--threshold", "5%"}, exitFailed, nil, "vm counted instructions"},
		{[]string{vm, vm}, exitDone, []string{"instructions/", "less is better"}, ""},
		{[]string{old, worse, "--allow-missing"}, exitMisuse, nil, "--allow-missing: --threshold is missing"},
		{[]string{old, foreign}, exitFailed, []string{"Not in 20260101T000000Z: another"},
			"lacks a row that another run measured"},
	})
	_, stdout, _ := command(t, env, "compare", old, worse, "-o", "json")
	var listed struct {
		Schema int
		Runs   []string
		Tables []struct {
			Lines []struct {
				Deltas []struct {
					Ratio float64
					Found bool
				}
			}
		}
	}
	testkit.Succeed(t, json.Unmarshal([]byte(stdout), &listed))
	testkit.Check(t, listed.Schema == cli.Schema && len(listed.Runs) == 2 && len(listed.Tables) == 2 &&
		listed.Tables[0].Lines[0].Deltas[0].Found,
		"%+v", listed)
}

// TestCompareLost compares with runs in which a row has failed, is missing, or has fallen to 0.
func TestCompareLost(t *testing.T) {
	sound := testkit.Must(result.Read(soundFile))(t)
	dir := t.TempDir()
	old := writeRun(t, dir, "old", sound)
	spoilt := func(name string, spoil func(r *result.Row)) string {
		f := slower(sound, 1)
		i := slices.IndexFunc(f.Rows, func(r result.Row) bool {
			return r.ID == "loopback" && r.Workload == result.WorkloadTCPStream
		})
		spoil(&f.Rows[i])
		return writeRun(t, dir, name, f)
	}
	failed := spoilt("failed", func(r *result.Row) {
		*r = result.Row{Suite: r.Suite, ID: r.ID, Link: r.Link, Workload: r.Workload, Datapath: r.Datapath,
			Placement: r.Placement, Overlay: r.Overlay,
			Target: r.Target, Via: r.Via, Flows: r.Flows, Status: result.StatusFailed, Reason: "round 3"}
	})
	gone := sound
	gone.Rows = slices.DeleteFunc(slices.Clone(sound.Rows), func(r result.Row) bool { return r.ID == "loopback" })
	vanished := writeRun(t, dir, "vanished", gone)
	zero := spoilt("zero", func(r *result.Row) { clear(r.Samples); r.Median, r.CI95 = 0, nil })
	once := spoilt("once", func(r *result.Row) { r.Samples, r.Positions, r.Median, r.CI95 = []float64{0}, nil, 0, nil })
	some := spoilt("some", func(r *result.Row) { r.Samples[0], r.CI95[0] = 0, 0 })
	checkCompare(t, map[string]string{envStateDir: filepath.Join(t.TempDir(), "state")}, []compareCase{
		{[]string{old, failed, "--threshold", "5%"}, exitWorse, []string{"Not in failed, failed: round 3"},
			"NEW lacks these rows (--allow-missing allows it): loopback tcp_stream\n"},
		{[]string{old, failed, "--threshold", "5%", "--allow-missing"}, exitDone, []string{"geomean"}, ""},
		{[]string{failed, old, "--threshold", "5%"}, exitDone, []string{"geomean"}, ""},
		{[]string{old, failed}, exitDone, []string{"geomean"}, ""},
		{[]string{old, old, vanished, "--threshold", "5%"}, exitWorse, []string{"geomean"},
			"NEW lacks these rows (--allow-missing allows it): loopback tcp_stream, loopback "},
		{[]string{vanished, old, failed, "--threshold", "5%"}, exitDone, []string{"geomean"}, ""},
		{[]string{old, zero, "--threshold", "5%"}, exitWorse, []string{"-100.0 %"},
			"worse by more than 5%: loopback tcp_stream\n"},
		{[]string{old, once, "--threshold", "5%"}, exitWorse, []string{"-100.0 %"},
			"worse by more than 5%: loopback tcp_stream\n"},
		{[]string{old, some, "--threshold", "5%"}, exitDone, []string{"A row with a sample of 0 lacks an interval"},
			"row loopback tcp_stream: interval wider than the threshold\n"},
	})
}

// TestReportInterrupted prints results that are not read: Ctrl-C still ends the command.
func TestReportInterrupted(t *testing.T) {
	for _, args := range [][]string{{"report", soundFile, "-o", "csv"}, {"compare", soundFile, soundFile}} {
		output, stdout := io.Pipe()
		ctx, interrupt := context.WithCancel(t.Context())
		go func() {
			_, _ = output.Read(make([]byte, 1))
			interrupt()
		}()
		ended := make(chan int, 1)
		go func() {
			ended <- run(ctx, cli.Environment{Stdout: stdout, Stderr: io.Discard, Getenv: func(string) string { return "" }},
				args)
		}()
		select {
		case code := <-ended:
			testkit.Check(t, code == exitFailed, "%v: exit code %d, want %d", args, code, exitFailed)
		case <-time.After(20 * time.Second):
			t.Errorf("%v goes on", args)
		}
		_ = output.Close()
	}
}

// TestColored prints without colors if the terminal lacks colors, or NO_COLOR is set.
func TestColored(t *testing.T) {
	for _, c := range []struct {
		env  map[string]string
		want bool
	}{
		{map[string]string{"TERM": "xterm"}, true}, {map[string]string{"TERM": "dumb"}, false},
		{map[string]string{"TERM": "xterm", "NO_COLOR": "1"}, false},
	} {
		got := colored(func(key string) string { return c.env[key] })
		testkit.Check(t, got == c.want, "%v: %t", c.env, got)
	}
}
