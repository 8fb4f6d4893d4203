// SPDX-License-Identifier: Apache-2.0

package report_test

import (
	"errors"
	"flag"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"mustang/internal/report"
	"mustang/internal/report/html"
	"mustang/internal/report/render"
	"mustang/internal/result"
	"mustang/internal/testkit"
)

// update rewrites the golden files: go test ./internal/report -update.
var update = flag.Bool("update", false, "rewrite the golden files")

// golden compares got to a file below testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := "testdata/" + name
	if *update {
		testkit.Succeed(t, os.WriteFile(path, []byte(got), 0o600))
	}
	want, err := os.ReadFile(path)
	testkit.Succeed(t, err)
	testkit.Check(t, got == string(want), "%s differs; go test -update rewrites it. Got:\n%s", path, got)
}

// TestTableGolden compares whole tables of made-up data to stored ones.
func TestTableGolden(t *testing.T) {
	golden(t, "made-up.txt", textOf(t, sample(t, "made-up"), render.Options{}))
	golden(t, "made-up-80.txt", textOf(t, sample(t, "made-up"), render.Options{Width: 80}))
}

// TestNothingIsLeftOut checks that every row and every reason is in the table
// and in the page, whatever state the file is in.
func TestNothingIsLeftOut(t *testing.T) {
	full := sample(t, "made-up")
	failed := truncated(full, 0)
	for i := range failed.Rows {
		row := &failed.Rows[i]
		row.Status, row.Reason, row.CI95, row.Median = result.StatusFailed, "reason "+string(rune('A'+i%26)), nil, 0
	}
	failed.Run.Comparisons = nil
	single := full
	single.Rows = full.Rows[4:5]
	suites := sample(t, "suites")
	for name, f := range map[string]result.File{
		"all suites": suites, "all suites, 3 rounds": truncated(suites, 3), "switching": oneSuite(t, "switching"),
		"docker":     oneSuite(t, "docker"),
		"interfaces": oneSuite(t, "interfaces"), "latency": truncated(oneSuite(t, "latency"), 2), "full": full,
		"3 rounds": truncated(full, 3), "1 round": truncated(full, 1),
		"all failed": failed, "single": single, "empty": {Schema: result.Schema},
	} {
		t.Run(name, func(t *testing.T) {
			for _, o := range []render.Options{{}, {Width: 60}, {Wide: true, Color: true}} {
				checkText(t, f, textOf(t, f, o))
			}
			checkText(t, withoutSkipped(f), wordsOf(pageOf(t, f)))
		})
	}
}

// withoutSkipped leaves out rows that were skipped, of each workload that has others: the page has only their reasons.
func withoutSkipped(f result.File) result.File {
	measured := map[result.Key]bool{}
	of := func(r result.Row) result.Key {
		k := r.Key()
		k.ID = ""
		return k
	}
	for _, r := range f.Rows {
		measured[of(r)] = measured[of(r)] || r.Status != result.StatusSkipped
	}
	f.Rows = slices.DeleteFunc(slices.Clone(f.Rows), func(r result.Row) bool {
		return r.Status == result.StatusSkipped &&
			measured[of(r)]
	})
	return f
}

// checkText checks that text has a line for every row of f, its figure and its reason.
func checkText(t *testing.T, f result.File, got string) {
	t.Helper()
	got = regexp.MustCompile("\x1b\\[[0-9]+m").ReplaceAllString(got, "")
	got = strings.Join(strings.Fields(got), " ")
	rows := 0
	for _, su := range reportOf(t, f).Suites {
		testkit.Check(t, strings.Contains(got, su.Question), "%s: question %q is missing", su.Name, su.Question)
		for _, w := range su.Workloads {
			rows += len(w.Rows.Lines)
			checkTable(t, w.Rows, got)
			if w.Comparisons != nil {
				checkTable(t, *w.Comparisons, got)
			}
		}
	}
	testkit.Check(t, rows == len(f.Rows), "%d rows in tables, %d in the file", rows, len(f.Rows))
	for _, row := range f.Rows {
		testkit.Check(t, strings.Contains(got, row.Reason), "%s %s: reason %q is missing", row.ID, row.Workload, row.Reason)
	}
}

// checkTable checks that got has the cells of each line that are in every table, with
// no more than two figures between neighbours.
func checkTable(t *testing.T, table report.Table, got string) {
	t.Helper()
	for i := range table.Lines {
		var parts []string
		for _, c := range table.Columns {
			if c.Rank == 0 {
				parts = append(parts, regexp.QuoteMeta(strings.TrimSpace(c.Cells[i].Text+c.Cells[i].Mark)))
			}
		}
		want := strings.Join(parts, ` ([^ ]+ ){0,2}`)
		if !regexp.MustCompile(want).MatchString(strings.ReplaceAll(strings.ReplaceAll(got, " ~", "~"), " ?", "?")) {
			t.Errorf("%s: no line that matches %q", table.Title, want)
		}
	}
}

// TestTableFits checks that the tables' lines keep to the terminal's width,
// as far as the columns that are always shown allow (74 here).
func TestTableFits(t *testing.T) {
	for _, width := range []int{70, 80, 100, 132, 200} {
		for _, line := range strings.Split(textOf(t, sample(t, "made-up"), render.Options{Width: width, Wide: true}), "\n") {
			n := len([]rune(line))
			testkit.Check(t, n <= width || n <= 74, "width %d: %d columns: %q", width, n, line)
		}
	}
}

// TestStateOfRun checks that the report mentions an unfinished or short run.
func TestStateOfRun(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*result.File)
		want   string
	}{
		"interrupted": {func(f *result.File) { *f = truncated(*f, 7); f.Run.Interrupted = true },
			"interrupted: 7 of 10 rounds done"},
		"running": {func(f *result.File) { f.Run.Finished = time.Time{} }, "has not finished"},
		"quick":   {func(f *result.File) { f.Run.Quick = true }, "quick run"},
		"few":     {func(f *result.File) { *f = truncated(*f, 5) }, "Too few rounds (5)"},
		"note":    {func(f *result.File) { f.Run.Notes = []string{"the fan\nstopped"} }, "the fan stopped"},
	} {
		t.Run(name, func(t *testing.T) {
			f := sample(t, "made-up")
			before := textOf(t, f, render.Options{})
			tc.change(&f)
			testkit.Check(t, !strings.Contains(before, tc.want), "%q is said of any run", tc.want)
			out := textOf(t, f, render.Options{})
			testkit.Check(t, strings.Contains(out, tc.want), "table does not say %q", tc.want)
			out = wordsOf(pageOf(t, f))
			testkit.Check(t, strings.Contains(out, tc.want), "page does not say %q", tc.want)
		})
	}
}

// TestRefusesBadFiles checks that a file of another schema or with impossible figures gets no report.
func TestRefusesBadFiles(t *testing.T) {
	other := sample(t, "made-up")
	other.Schema = 3
	_, err := report.New(other)
	testkit.Check(t, err != nil && strings.Contains(err.Error(), "unknown schema 3"), "schema 3: %v", err)
	odd := sample(t, "made-up")
	odd.Rows[0].Workload = "dance"
	_, err = report.New(odd)
	testkit.Check(t, err != nil && strings.Contains(err.Error(), `workload "dance"`), "workload dance: %v", err)
}

// fullDisk is a writer without room.
type fullDisk struct{}

// Write implements io.Writer.
func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left") }

// TestWriteErrors checks that a writer's error comes back.
func TestWriteErrors(t *testing.T) {
	r := reportOf(t, sample(t, "made-up"))
	err := render.Text(fullDisk{}, r, render.Options{})
	testkit.Check(t, err != nil, "text: no error")
	err = html.Write(fullDisk{}, r)
	testkit.Check(t, err != nil, "page: no error")
}

// TestCountedWords checks that a report on counted instructions mentions it, takes the fewest for the best, and
// avoids words of speed or time.
func TestCountedWords(t *testing.T) {
	f := sample(t, "counted")
	page := wordsOf(pageOf(t, f))
	for name, got := range renderings(t, f) {
		joined := strings.ReplaceAll(strings.Join(strings.Fields(got), " "), "\u00a0", " ")
		for _, want := range []string{
			"Instructions, not time: an emulated processor", "instr./packet", "instr./trans.", "UDP packets",
		} {
			testkit.Check(t, strings.Contains(joined, want), "%s does not say %q", name, want)
		}
		for _, never := range []string{"fastest", "faster", "slower", "CPU µs", "throughput", "Gbit/s", "on this machine (",
			"0ms", "Longer is better", "left of it"} {
			testkit.Check(t, !strings.Contains(joined, never), "%s says %q", name, never)
		}
	}
	for _, want := range []string{"Left is better", "takes the fewest instructions for UDP packets", "+31 % ±1",
		"mustang bench --vm pod-links", "6.12.0-1 (made up)"} {
		testkit.Check(t, strings.Contains(page, want), "page does not say %q", want)
	}
	if out := textOf(t, oneSuite(t, "pod-links"), render.Options{}); strings.Contains(out, "nstructions") ||
		!strings.Contains(out, "fastest") {
		t.Error("a report on rates speaks of instructions")
	}
}

// TestLost checks that a lossy stream of datagrams is shown as such.
func TestLost(t *testing.T) {
	f := oneSuite(t, "pod-links")
	f.Rows = slices.DeleteFunc(f.Rows, func(r result.Row) bool { return r.Workload != result.WorkloadUDPStream })
	f.Rows[1].LostShare, f.Rows[1].OutOfOrder = 0.125, 7
	for name, got := range renderings(t, f) {
		testkit.Check(t, strings.Contains(strings.ReplaceAll(got, "\u00a0", " "), "12.5 %, 7 late"),
			"%s does not tell of the loss", name)
	}
}
