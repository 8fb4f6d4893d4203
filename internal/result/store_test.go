// SPDX-License-Identifier: Apache-2.0

package result

import (
	"bufio"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// victimVariable names a file that the test binary rewrites until it is killed.
const victimVariable = "MUSTANG_RESULT_TEST_VICTIM"

func TestMain(m *testing.M) {
	path := os.Getenv(victimVariable)
	if path == "" {
		os.Exit(m.Run())
	}
	for i := 0; ; i++ {
		if err := Write(path, numbered(i)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		if i == 0 {
			fmt.Println("written")
		}
	}
}

// numbered is a large file that tells whether it is whole: all its rows carry
// the same figure.
func numbered(i int) File {
	f := sample()
	row := f.Rows[0]
	f.Rows = nil
	for n := range 200 {
		row.ID = fmt.Sprintf("row-%d", n)
		row.CPUUSPerUnit = float64(i)
		f.Rows = append(f.Rows, row)
	}
	return f
}

// TestWriteKilled kills a process that writes over and over. The file must be
// whole each time.
func TestWriteKilled(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "results.json")
	if err := Write(path, numbered(-1)); err != nil {
		t.Fatal(err)
	}
	for round := range 8 {
		cmd := exec.Command(exe)
		cmd.Env = append(os.Environ(), victimVariable+"="+path)
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
			t.Errorf("the first write: %v", err)
		}
		// The process dies at an arbitrary moment of a later write.
		timer := time.NewTimer(time.Duration(7*round) * time.Millisecond)
		<-timer.C
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		f, err := Read(path)
		if err != nil {
			t.Fatal(err)
		}
		if len(f.Rows) != 200 || f.Rows[0].CPUUSPerUnit != f.Rows[199].CPUUSPerUnit {
			t.Errorf("half a file: %d rows", len(f.Rows))
		}
		if f.Rows[0].CPUUSPerUnit < 0 {
			t.Error("the first write is not in the file")
		}
	}
}

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "results.json")
	if err := Write(path, sample()); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	bad := sample()
	bad.Rows[0].Median = math.NaN()
	if err := Write(path, bad); err == nil || !strings.Contains(err.Error(), "median holds NaN") {
		t.Errorf("NaN: %v", err)
	}
	after, err := os.ReadFile(path)
	if err != nil || string(before) != string(after) {
		t.Errorf("a refused write changed the file, %v", err)
	}
	if err := Write(filepath.Join(dir, "no", "results.json"), sample()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing directory: %v", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

// TestReadSchema1 checks that a file of schema 1 gets descriptions of its suites
// that come from its rows.
func TestReadSchema1(t *testing.T) {
	f, err := Read(filepath.Join("testdata", "schema1.json"))
	if err != nil {
		t.Fatal(err)
	}
	want := []Suite{
		{Name: "pod-links", Question: "pod-links", Layout: LayoutMatrix, Noun: "row", Answer: []string{AnswerFastest, AnswerServiceCost}},
		{Name: "latency", Question: "latency", Layout: LayoutList, Noun: "row", Reference: "host", Answer: []string{AnswerFastest, AnswerReference}},
	}
	if diff := cmp.Diff(want, f.Suites); diff != "" {
		t.Errorf("suites (-want +got):\n%s", diff)
	}
	for _, row := range f.Rows {
		if row.Baseline != (row.Link == LinkHost || row.ID == "host-to-pod") || row.Repeats != strings.TrimSuffix(row.ID, "/again") && row.Repeats != "" {
			t.Errorf("row %s: baseline %t, repeats %q", row.ID, row.Baseline, row.Repeats)
		}
	}
	for i, suite := range []string{"pod-links", "pod-links", "latency"} {
		if got := f.Run.Comparisons[i].Suite; got != suite {
			t.Errorf("comparison %d is of suite %q, want %q", i, got, suite)
		}
	}
	if _, err := Marshal(f); f.Schema != Schema || err != nil {
		t.Errorf("schema %d, %v", f.Schema, err)
	}
}

func TestReadErrors(t *testing.T) {
	for name, tt := range map[string]struct{ text, want string }{
		"other schema": {`{"schema":3,"rows":{"new":"layout"}}`, "unknown schema 3 (this program reads 1 to 2)"},
		"no schema":    {`{"rows":[]}`, "no schema number"},
		"half a file":  {`{"schema":2,"rows":[`, "unexpected end"},
		"wrong type":   {`{"schema":2,"rows":7}`, "rows"},
		"bad row":      {`{"schema":2,"rows":[{"id":"a"}]}`, `row 0 (a ): datapath "" is none of kernel, ebpf`},
	} {
		path := filepath.Join(t.TempDir(), "results.json")
		if err := os.WriteFile(path, []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Read(path)
		if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, want %q in it", name, err, tt.want)
		}
		var schema *SchemaError
		if errors.As(err, &schema) != strings.HasSuffix(name, "schema") {
			t.Errorf("%s: %v is of type %T", name, err, err)
		}
	}
	if _, err := Read(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
}
