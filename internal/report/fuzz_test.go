// SPDX-License-Identifier: Apache-2.0

package report_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mustang/internal/report"

	"mustang/internal/report/html"
	"mustang/internal/report/render"
	"mustang/internal/result"
	"mustang/internal/testkit"
)

// counter counts written bytes.
type counter struct{ n int }

// Write implements io.Writer.
func (c *counter) Write(p []byte) (int, error) {
	c.n += len(p)
	return len(p), nil
}

// renderAll reads a result file and makes all reports of it. It returns the number of bytes written.
func renderAll(path string) (int, error) {
	f, err := result.Read(path)
	if err != nil {
		return 0, err
	}
	r, err := report.New(f)
	if err != nil {
		return 0, err
	}
	var w counter
	for _, o := range []render.Options{{Width: 80}, {Wide: true, Color: true}} {
		if err := cmp.Or(render.Answer(&w, r, "", o), render.Text(&w, r, o)); err != nil {
			return w.n, err
		}
	}
	if err := html.Write(&w, r); err != nil {
		return w.n, err
	}
	return w.n, exportAll(&w, f)
}

// exportAll writes a file in all formats, and a comparison of it with a run of half as many samples.
func exportAll(w io.Writer, f result.File) error {
	half := f
	half.Rows = slices.Clone(f.Rows)
	for i := range half.Rows {
		r := &half.Rows[i]
		positions := r.SamplePositions()
		r.Samples, r.Positions = r.Samples[len(r.Samples)/2:], positions[len(positions)/2:]
	}
	c, err := report.Compare(report.NamedRun{Name: "old", File: f}, report.NamedRun{Name: "new", File: half})
	if err != nil {
		return err
	}
	if _, err := json.Marshal(c); err != nil {
		return err
	}
	return errors.Join(render.CSV(w, f), render.Markdown(w, f), render.Benchfmt(w, report.NamedRun{Name: "run", File: f}),
		render.ComparisonCSV(w, c), render.ComparisonMarkdown(w, c), render.WriteComparison(w, c, render.Options{Wide: true}))
}

// minimal is a result file of one suite with two rows and a comparison, in which each figure stands for itself.
const minimal = `{"schema":2,"run":{"suite":"s","rounds":6,"comparisons":[{"suite":"s","workload":"tcp_rr",` +
	`"numerator":"b/x","denominator":"a/x",
"ratios":[1,1,1,1,1,1],"ratio":1,"ci95":[0.5,2]}]},
"suites":[{"name":"s","question":"q","layout":"LAYOUT","answer":["fastest","reference","tally","statements"],
"reference":"a/x","transaction_time":true,"packet_path":true,"variants":true,
"groups":[{"caption":"g","rows":["a/x"]}],"series":[{"name":"n","color":"blue","rows":["b/x"]}],
"statements":[{"caption":"c","pairs":[{"numerator":"b/x","denominator":"a/x","label":"l"}],"tally":true}]}],
"rows":[{"suite":"s","id":"a/x","link":"l","datapath":"kernel","placement":"same-host","overlay":"none","target":"pod-ip","via":"none","workload":"tcp_rr",
"engine":"e","unit":"transactions/s","samples":[7,7,7,7,7,7],"median":7,"ci95":[7,7],"latency_us":{"p50":1,"p90":2,"p99":3,"p999":4},"cpu_us_per_unit":5,"status":"ok"},
{"suite":"s","id":"b/x","link":"l","datapath":"kernel","placement":"same-host","overlay":"none","target":"cluster-ip","via":"iptables","workload":"tcp_rr",
"engine":"e","unit":"transactions/s","samples":[8,8,8,8,8,8],"median":8,"ci95":[8,8],"latency_us":{"p50":1,"p90":2,"p99":3,"p999":4},"cpu_us_per_unit":5,"status":"ok"}]}`

// FuzzReport reads arbitrary result files: they give reports of bounded size, or an error of one line.
func FuzzReport(f *testing.F) {
	for _, layout := range []string{result.LayoutList, result.LayoutMatrix} {
		file := strings.Replace(minimal, "LAYOUT", layout, 1)
		f.Add([]byte(file))
		for _, change := range [][2]string{
			{"[0.5,2]", "[-1e308,1e308]"}, {"[0.5,2]", "[-1e15,1e15]"}, {"[0.5,2]", "[1,999999999999999]"},
			{`"ratio":1,"ci95":[0.5,2]`, `"ratio":-1,"ci95":[-1,2]`},
			{"[7,7,7,7,7,7]", "[]"}, {`"median":7,"ci95":[7,7]`, `"median":0,"ci95":[-1e15,0]`}, {`"median":7,"ci95":[7,7]`,
				`"median":1e-320,"ci95":[0,1e15]`},
			{`"p50":1`, `"p50":1e-320`}, {`"p999":4`, `"p999":1e15`}, {`"p50":1`, `"p50":-1e15`},
			{`"median":8`, `"median":1e999`},
			{`"cpu_us_per_unit":5`, `"cpu_us_per_unit":1e-300`}, {`"rounds":6`, `"rounds":9223372036854775807`},
			{`"schema":2`, `"schema":1`},
			{`"engine":"e"`, `"engine":"e","flows":9223372036854775807`}, {`"reference":"a/x"`, `"reference":"z"`},
			{`"via":"iptables"`, `"via":"none"`},
			{`"id":"b/x"`, `"id":"a/x"`}, {`"link":"l"`, `"repeats":"a/x","link":"\u202e"`}, {"tcp_rr", "udp_stream"},
			{"tcp_rr", "cni_add"}, {"q", "\xff\x1b[2J"},
		} {
			f.Add([]byte(strings.ReplaceAll(file, change[0], change[1])))
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), "results.json")
		testkit.Succeed(t, os.WriteFile(path, data, 0o600))
		n, err := renderAll(path)
		most := 1<<20 + 1000*len(data)
		testkit.Check(t, n <= most, "%d bytes of reports from %d bytes", n, len(data))
		testkit.Check(t, err == nil || !strings.Contains(strings.ReplaceAll(err.Error(), path, ""), "\n"),
			"an error of several lines: %q", err)
	})
}

// TestLargestFile checks that a file at the limits gets a report.
func TestLargestFile(t *testing.T) {
	f := oneSuite(t, "latency")
	row := f.Rows[1]
	f.Rows = nil
	for i := range 5_000 {
		row.ID = strings.Repeat("x", 100) + string(rune('a'+i%26)) + "/" + strings.Repeat("y", i/26%100) + "/" +
			strings.Repeat("z", i/2600)
		row.Flows = 1 + i%50
		f.Rows = append(f.Rows, row)
	}
	f.Run.Comparisons = nil
	r := reportOf(t, f)
	err := html.Write(io.Discard, r)
	testkit.Check(t, err == nil, "%v", err)
	err = render.Text(io.Discard, r, render.Options{Wide: true})
	testkit.Check(t, err == nil, "%v", err)
	n := strings.Count(briefOf(t, f, 0), "\n")
	testkit.Check(t, n <= 25, "an answer of %d lines", n)
}
