// SPDX-License-Identifier: Apache-2.0

package report

import (
	"regexp"
	"strings"
	"testing"

	"mustang/internal/result"
)

// TestNothingIsLeftOut checks that every row and every reason is in the table
// and in the page, whatever state the file is in.
func TestNothingIsLeftOut(t *testing.T) {
	full := madeUp(t)
	failed := truncated(full, 0)
	for i := range failed.Rows {
		row := &failed.Rows[i]
		row.Status, row.Reason, row.CI95, row.Median = result.StatusFailed, "reason "+string(rune('A'+i%26)), nil, 0
	}
	failed.Run.Comparisons = nil
	single := full
	single.Rows = full.Rows[4:5]
	suites := allSuites()
	for name, f := range map[string]result.File{
		"all suites": suites, "all suites, 3 rounds": truncated(suites, 3), "switching": oneSuite(suiteSwitching), "docker": oneSuite(suiteDocker),
		"interfaces": oneSuite(suiteInterfaces), "latency": truncated(oneSuite(suiteLatency), 2), "full": full, "3 rounds": truncated(full, 3), "1 round": truncated(full, 1),
		"all failed": failed, "single": single, "empty": {Schema: result.Schema},
	} {
		t.Run(name, func(t *testing.T) {
			for _, o := range []TableOptions{{}, {Width: 60}, {Wide: true, Color: true}} {
				text := tableOf(t, f, o)
				if len(newView(f).suites) < 2 || o.Wide {
					checkText(t, f, text)
				} else if !strings.Contains(text, "Left out here") {
					t.Error("the table does not say what it leaves out")
				}
			}
			checkText(t, f, plainText(htmlOf(t, f)))
		})
	}
}

// checkText checks that text has a line for every row of f, its figure and its
// reason.
func checkText(t *testing.T, f result.File, text string) {
	t.Helper()
	text = regexp.MustCompile("\x1b\\[[0-9]+m").ReplaceAllString(text, "")
	joined := strings.Join(strings.Fields(text), " ")
	v := newView(f)
	for _, su := range v.suites {
		if !strings.Contains(joined, su.question) {
			t.Errorf("%s: question %q is missing", su.name, su.question)
		}
	}
	rows := 0
	for _, s := range v.sets {
		rows += len(s.entries)
		for _, c := range s.ordered() {
			if !strings.Contains(joined, comparisonName(c)+" "+ratio(c.Ratio)) {
				t.Errorf("%s: comparison %s is missing", s.name, comparisonName(c))
			}
		}
		places := s.places()
		for _, e := range s.entries {
			want := regexp.QuoteMeta(e.connection) + `\s+`
			if !s.byID {
				want += targetName(e.Target) + `\s+` + viaName(e.Via) + `\s+`
			}
			if e.ok() {
				want += regexp.QuoteMeta(number(e.Median, places)) + `\s`
			} else {
				want += none
				if !strings.Contains(joined, e.Reason) {
					t.Errorf("%s %s: reason %q is missing", e.ID, e.Workload, e.Reason)
				}
			}
			if !regexp.MustCompile(want).MatchString(joined) {
				t.Errorf("%s %s: no line that matches %q", e.ID, e.Workload, want)
			}
		}
	}
	if rows != len(f.Rows) {
		t.Errorf("%d rows in sets, %d in the file", rows, len(f.Rows))
	}
}

// TestTableFits checks that the tables' lines keep to the terminal's width,
// as far as the columns that are always shown allow (74 here).
func TestTableFits(t *testing.T) {
	for _, width := range []int{70, 80, 100, 132, 200} {
		for _, line := range strings.Split(tableOf(t, madeUp(t), TableOptions{Width: width, Wide: true}), "\n") {
			if n := len([]rune(line)); n > width && n > 74 {
				t.Errorf("width %d: %d columns: %q", width, n, line)
			}
		}
	}
}

// TestColor checks that colours appear only if asked for and are all ended.
func TestColor(t *testing.T) {
	if out := tableOf(t, madeUp(t), TableOptions{}); strings.Contains(out, "\x1b") {
		t.Error("colours in plain text")
	}
	out := tableOf(t, madeUp(t), TableOptions{Color: true})
	if starts := strings.Count(out, "\x1b["); starts == 0 || starts != 2*strings.Count(out, "\x1b[0m") {
		t.Errorf("%d sequences, %d of them ends", starts, strings.Count(out, "\x1b[0m"))
	}
}

// TestStateOfRun checks that the reader is told of an unfinished or short run.
func TestStateOfRun(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*result.File)
		want   string
	}{
		"interrupted": {func(f *result.File) { *f = truncated(*f, 7); f.Run.Interrupted = true }, "interrupted: 7 of 10 rounds done"},
		"running":     {func(f *result.File) { f.Run.Finished = zero() }, "has not finished"},
		"quick":       {func(f *result.File) { f.Run.Quick = true }, "quick run"},
		"few":         {func(f *result.File) { *f = truncated(*f, 5) }, "Too few rounds (5)"},
		"note":        {func(f *result.File) { f.Run.Notes = []string{"the fan\nstopped"} }, "the fan stopped"},
	} {
		t.Run(name, func(t *testing.T) {
			f := madeUp(t)
			before := tableOf(t, f, TableOptions{})
			tc.change(&f)
			if strings.Contains(before, tc.want) {
				t.Errorf("%q is said of any run", tc.want)
			}
			if out := tableOf(t, f, TableOptions{}); !strings.Contains(out, tc.want) {
				t.Errorf("table does not say %q", tc.want)
			}
			if out := plainText(htmlOf(t, f)); !strings.Contains(out, tc.want) {
				t.Errorf("page does not say %q", tc.want)
			}
		})
	}
}

// TestExtremes makes reports of figures that no machine gives; they must end,
// and without a panic.
func TestExtremes(t *testing.T) {
	for name, scale := range map[string]float64{"zero": 0, "tiny": 1e-300, "huge": 1e290, "negative": -1} {
		for _, source := range []result.File{madeUp(t), allSuites()} {
			t.Run(name+" "+source.Run.Suite, func(t *testing.T) {
				f := withLatency(truncated(source, 5), func(l *result.Latency) {
					*l = result.Latency{P50: l.P50 * scale, P90: 1e300, P99: 1e300, P999: 1e300}
				})
				for i := range f.Rows {
					f.Rows[i].Median *= scale
					f.Rows[i].CPUUSPerUnit *= scale
					f.Rows[i].Offered *= scale
				}
				for i := range f.Run.Comparisons {
					f.Run.Comparisons[i].Ratio *= scale
				}
				tableOf(t, f, TableOptions{Width: 80})
				tableOf(t, f, TableOptions{Wide: true})
				htmlOf(t, f)
			})
		}
	}
}

// TestRefusesBadFiles checks that a file of another schema or with impossible
// figures is not reported on.
func TestRefusesBadFiles(t *testing.T) {
	other := madeUp(t)
	other.Schema = 2
	odd := madeUp(t)
	odd.Rows[0].Workload = "dance"
	for _, f := range []result.File{other, odd} {
		var b strings.Builder
		if Table(&b, f, TableOptions{}) == nil || HTML(&b, f) == nil {
			t.Errorf("schema %d, workload %q: no error", f.Schema, f.Rows[0].Workload)
		}
		if b.Len() > 0 {
			t.Errorf("wrote %d bytes of a bad file", b.Len())
		}
	}
}

// TestWriteErrors checks that a writer's error comes back.
func TestWriteErrors(t *testing.T) {
	if err := Table(fullDisk{}, madeUp(t), TableOptions{}); err == nil {
		t.Error("table: no error")
	}
	if err := HTML(fullDisk{}, madeUp(t)); err == nil {
		t.Error("page: no error")
	}
}
