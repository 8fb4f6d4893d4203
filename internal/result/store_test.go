// SPDX-License-Identifier: Apache-2.0

package result

import (
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// victimVariable names a file that the test binary rewrites until it is
// killed.
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
	moved := false
	for round := range 8 {
		cmd := exec.Command(exe)
		cmd.Env = append(os.Environ(), victimVariable+"="+path)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// Not to wait for anything: the moment of death is to be arbitrary.
		timer := time.NewTimer(time.Duration(20+7*round) * time.Millisecond)
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
		moved = moved || f.Rows[0].CPUUSPerUnit >= 0
	}
	if !moved {
		t.Error("no round wrote anything")
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

func TestReadErrors(t *testing.T) {
	for name, tt := range map[string]struct{ text, want string }{
		"other schema": {`{"schema":2,"rows":{"new":"layout"}}`, "schema 2 is not known, this program knows schema 1"},
		"no schema":    {`{"rows":[]}`, "no schema number"},
		"half a file":  {`{"schema":1,"rows":[`, "unexpected end"},
		"wrong type":   {`{"schema":1,"rows":7}`, "rows"},
		"bad row":      {`{"schema":1,"rows":[{"id":"a"}]}`, `row 0 (a ): datapath "" is none of kernel, ebpf`},
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
