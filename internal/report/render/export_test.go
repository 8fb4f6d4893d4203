// SPDX-License-Identifier: Apache-2.0

package render_test

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"image/png"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/perf/benchfmt"

	"mustang/internal/report"
	"mustang/internal/report/render"
	"mustang/internal/result"
	"mustang/internal/testkit"
)

var update = flag.Bool("update", false, "rewrite testdata")

func read(t *testing.T, name string) result.File {
	t.Helper()
	f, err := result.Read(filepath.Join("..", "testdata", name+".json"))
	testkit.Succeed(t, err)
	return f
}

// later is the file of a later run: rates grew by a tenth, but for one row, which lost a fifth; the first row is gone.
func later(f result.File) result.File {
	f.Run.Kernel = "6.19.0-made-up"
	rows := f.Rows[1:]
	f.Rows = nil
	for i, r := range rows {
		factor := 1.1
		if i == 0 {
			factor = 0.8
		}
		samples := []float64{}
		for _, v := range r.Samples {
			samples = append(samples, v*factor)
		}
		r.Samples, r.Median = samples, r.Median*factor
		if r.CI95 != nil {
			r.CI95 = &[2]float64{r.CI95[0] * factor, r.CI95[1] * factor}
		}
		f.Rows = append(f.Rows, r)
	}
	return f
}

func comparison(t *testing.T) *report.Comparison {
	t.Helper()
	f := read(t, "made-up")
	c, err := report.Compare(report.NamedRun{Name: "old", File: f}, report.NamedRun{Name: "new", File: later(f)})
	testkit.Succeed(t, err)
	return c
}

// TestGolden compares all formats with files in testdata.
func TestGolden(t *testing.T) {
	c := comparison(t)
	for name, write := range map[string]func(*bytes.Buffer) error{
		"rows.csv":        func(b *bytes.Buffer) error { return render.CSV(b, read(t, "made-up")) },
		"rows.md":         func(b *bytes.Buffer) error { return render.Markdown(b, read(t, "made-up")) },
		"comparison.csv":  func(b *bytes.Buffer) error { return render.ComparisonCSV(b, c) },
		"comparison.md":   func(b *bytes.Buffer) error { return render.ComparisonMarkdown(b, c) },
		"comparison.txt":  func(b *bytes.Buffer) error { return render.WriteComparison(b, c, render.Options{}) },
		"comparison.wide": func(b *bytes.Buffer) error { return render.WriteComparison(b, c, render.Options{Wide: true}) },
	} {
		var got bytes.Buffer
		if err := write(&got); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		path := filepath.Join("testdata", name)
		if *update {
			testkit.Succeed(t, os.WriteFile(path, got.Bytes(), 0o600))
		}
		want, err := os.ReadFile(path)
		testkit.Succeed(t, err)
		diff := cmp.Diff(string(want), got.String())
		testkit.Check(t, diff == "", "%s (-want +got):\n%s", name, diff)
	}
}

// TestComparisonOfNoisyRuns has differences of many times, figures of thousands, a suite in one run alone, and
// warnings.
func TestComparisonOfNoisyRuns(t *testing.T) {
	made := func(suite, id string, median, half float64) result.Row {
		row := result.Row{
			Suite: suite, ID: id, Workload: result.WorkloadTCPRR, Unit: result.UnitTransactions, Status: result.StatusOK,
			Median: median, CI95: &[2]float64{median - half, median + half},
		}
		for i := range 10 {
			row.Samples = append(row.Samples, median*(1+float64(i)/100))
		}
		return row
	}
	files := [2]result.File{{Schema: result.Schema}, {Schema: result.Schema}}
	files[0].Rows = []result.Row{made("pod-links", "a", 59680, 100), made("latency", "b", 1, 0),
		made("latency", "c", 1, 0)}
	files[1].Rows = []result.Row{made("pod-links", "a", 716160, 2e6)}
	files[1].Run.Quick, files[1].Run.Finished = true, time.Unix(1, 0)
	c, err := report.Compare(report.NamedRun{Name: "20260101T000000Z", File: files[0]}, report.NamedRun{Name: "20260102T000000Z",
		File: files[1]})
	testkit.Succeed(t, err)
	var b bytes.Buffer
	testkit.Succeed(t, render.WriteComparison(&b, c, render.Options{}))
	for _, want := range []string{
		"20260102T000000Z: quick run.\n", "  20260101T000000Z  20260102T000000Z  ",
		"  59,680 ± 0.2 %  716,160 ± >100 %  12.0×  11.", "× to 12.",
		"\nNot in 20260102T000000Z: suite latency.\n",
	} {
		testkit.Check(t, strings.Contains(b.String(), want), "no %q in\n%s", want, b.String())
	}
}

// TestBenchfmtHasAllSamples reads the samples back with the reader that benchstat uses.
func TestBenchfmtHasAllSamples(t *testing.T) {
	for _, name := range []string{"made-up", "suites", "counted"} {
		f := read(t, name)
		var b bytes.Buffer
		testkit.Succeed(t, render.Benchfmt(&b, report.NamedRun{Name: "a run", File: f}))
		type sample struct {
			suite, name string
			value       float64
		}
		var got, want []sample
		reader := benchfmt.NewReader(&b, name)
		for reader.Scan() {
			switch rec := reader.Result().(type) {
			case *benchfmt.Result:
				testkit.Require(t, len(rec.Values) == 1 && rec.GetConfig("run") == "a run" && rec.GetConfig("goos") == "linux",
					"%s: %+v", name, rec)
				base, parts := rec.Name.Parts()
				got = append(got, sample{rec.GetConfig("suite"), string(base) + string(bytes.Join(parts, nil)),
					rec.Values[0].Value})
			case *benchfmt.SyntaxError:
				t.Errorf("%s: %v", name, rec)
			}
		}
		err := reader.Err()
		testkit.Check(t, err == nil, "%v", err)
		for _, unit := range []string{"B/s", "transactions/s", "sec/op", "instructions/packet"} {
			if m := reader.Units().Get(unit, "better"); m != nil && (m.Value == "higher") != (unit == "B/s" ||
				unit == "transactions/s") {
				t.Errorf("%s: better is %s", unit, m.Value)
			}
		}
		for _, row := range f.Rows {
			if row.Status != result.StatusOK {
				continue
			}
			name := map[string]string{
				"tcp_stream": "TCPStream", "tcp_rr": "TCPRR", "tcp_crr": "TCPCRR", "udp_stream": "UDPStream", "udp_rr": "UDPRR",
				"cni_add": "CNIADD", "cni_del": "CNIDEL",
			}[row.Workload] + "/" + row.ID
			if row.Flows > 1 {
				name += "/flows=" + strconv.Itoa(row.Flows)
			}
			scale := map[string]float64{"Gbit/s": 125e6, "ms": 1e-3}[row.Unit]
			for _, v := range row.Samples {
				if scale != 0 {
					v *= scale
				}
				want = append(want, sample{row.Suite, name, v})
			}
		}
		near := cmp.Comparer(func(a, b float64) bool { return math.Abs(a-b) <= 1e-9*math.Abs(b) })
		diff := cmp.Diff(want, got, cmp.AllowUnexported(sample{}), near)
		testkit.Check(t, diff == "" && len(want) != 0, "%s: %d samples (-want +got):\n%s", name, len(want), diff)
	}
}

// TestHostileNames exports names that the formats give a meaning.
func TestHostileNames(t *testing.T) {
	f := read(t, "made-up")
	hostile := "a b\x1b[2J\n|<script>`x` \u202e=1,\"2\" Unit: \\"
	for i := range f.Rows {
		f.Rows[i].ID += hostile
		f.Rows[i].Reason += hostile
		f.Rows[i].Suite = hostile
	}
	f.Run.Machine.CPUModel, f.Run.Kernel, f.Run.Versions = hostile, hostile, map[string]string{hostile: hostile}
	other := later(f)
	other.Run.Kernel += hostile
	c, err := report.Compare(report.NamedRun{Name: "old", File: f}, report.NamedRun{Name: "new", File: other})
	testkit.Succeed(t, err)
	for name, write := range map[string]func(*bytes.Buffer) error{
		"csv":        func(b *bytes.Buffer) error { return render.CSV(b, f) },
		"markdown":   func(b *bytes.Buffer) error { return render.Markdown(b, f) },
		"benchfmt":   func(b *bytes.Buffer) error { return render.Benchfmt(b, report.NamedRun{Name: hostile, File: f}) },
		"comparison": func(b *bytes.Buffer) error { return render.ComparisonMarkdown(b, c) },
		"as csv":     func(b *bytes.Buffer) error { return render.ComparisonCSV(b, c) },
		"as text":    func(b *bytes.Buffer) error { return render.WriteComparison(b, c, render.Options{Wide: true}) },
	} {
		var b bytes.Buffer
		err := write(&b)
		testkit.Check(t, err == nil, "%s: %v", name, err)
		testkit.Check(t, !strings.ContainsAny(b.String(), "\x1b\u202e"), "%s: control characters came through", name)
		shown := regexp.MustCompile("`[^`\n]*`|\\\\<").ReplaceAllString(b.String(), "")
		testkit.Check(t, name != "markdown" && name != "comparison" || !strings.Contains(shown, "<script>"),
			"%s: an element came through", name)
		if name != "benchfmt" {
			continue
		}
		for reader, n := benchfmt.NewReader(&b, ""), 0; reader.Scan(); n++ {
			bad, ok := reader.Result().(*benchfmt.SyntaxError)
			testkit.Check(t, !ok, "benchfmt: %v", bad)
		}
	}
}

// TestNoFormulas checks that no field of an untrusted file becomes a formula of a spreadsheet, and that figures stay
// figures.
func TestNoFormulas(t *testing.T) {
	var b strings.Builder
	fields := []string{`=cmd|"/C calc"!A0`, "+1+cmd", "@sum", "-5", "+1.5e3", "-x", "veth", ""}
	testkit.Succeed(t, render.WriteCSV(&b, [][]string{fields}))
	want := `"'=cmd|""/C calc""!A0",'+1+cmd,'@sum,-5,+1.5e3,'-x,veth,` + "\n"
	testkit.Check(t, b.String() == want, "%q, want %q", b.String(), want)
}

// TestShare reads the picture and the text back: both forms of the picture have each line of the answer.
func TestShare(t *testing.T) {
	shared := testkit.Must(render.Share(testkit.Must(report.New(read(t, "recorded-links")))(t)))(t)
	var text, vector, raster bytes.Buffer
	testkit.Succeed(t, errors.Join(shared.Markdown(&text), shared.SVG(&vector), shared.PNG(&raster)))
	lines := strings.Split(strings.TrimSuffix(strings.TrimPrefix(text.String(), "```text\n"), "\n```\n"), "\n")
	for _, want := range []string{"mustang bench pod-links", "macvlan is the fastest for requests", "veth+eBPF "} {
		testkit.Check(t, strings.Contains(text.String(), want), "the text lacks %q: %s", want, text.String())
	}
	var words strings.Builder
	for decoder := xml.NewDecoder(&vector); ; {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		testkit.Succeed(t, err)
		if data, ok := token.(xml.CharData); ok {
			words.Write(data)
		}
	}
	picture := testkit.Must(png.Decode(&raster))(t)
	for i, line := range lines {
		testkit.Check(t, strings.Contains(words.String(), line+"\n"), "share.svg lacks %q", line)
		dark := 0
		for x := range picture.Bounds().Dx() {
			for y := 44 + i*31 + 12; y < 44+(i+1)*31+6; y++ {
				if r, _, _, _ := picture.At(x, y).RGBA(); r < 0x8000 {
					dark++
				}
			}
		}
		letters := len(strings.ReplaceAll(line, " ", ""))
		testkit.Check(t, dark >= 8*letters, "share.png has %d dark pixels for %d letters of %q", dark, letters, line)
	}
}
