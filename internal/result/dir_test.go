// SPDX-License-Identifier: Apache-2.0

package result

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"mustang/internal/testkit"
)

// victimVariable names a directory in which the test binary starts runs and rewrites their results until it is killed.
const victimVariable = "MUSTANG_RESULT_TEST_VICTIM"

var started = time.Date(2026, 11, 22, 7, 35, 12, 987, time.FixedZone("east", 3600))

func TestMain(m *testing.M) {
	parent := os.Getenv(victimVariable)
	if parent == "" {
		os.Exit(m.Run())
	}
	for i := 0; ; i++ {
		if err := victim(parent, i); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

// victim writes two results of a run.
func victim(parent string, i int) error {
	d, err := CreateDir(parent, "", started, nil)
	if err != nil {
		return err
	}
	defer d.Close()
	for n := range 2 {
		if err := d.Write(numbered(2*i + n)); err != nil {
			return err
		}
		if i+n == 0 {
			fmt.Println("written")
		}
	}
	return nil
}

// numbered is a large result whose rows all carry the same figure: a mixed one is not whole.
func numbered(i int) File {
	f := File{Schema: Schema, Suites: []Suite{{
		Name: "s", Question: "?", Layout: LayoutList, Answer: []string{AnswerFastest},
	}}}
	for n := range 200 {
		f.Rows = append(f.Rows, Row{
			Suite: "s", ID: fmt.Sprintf("row-%d", n), Link: "veth", Datapath: DatapathKernel, Placement: PlacementSameHost,
			Overlay: OverlayNone, Target: TargetPodIP, Via: ViaNone, Workload: WorkloadTCPRR, Engine: "native",
			Unit: UnitTransactions, Samples: []float64{1}, Median: 1, CPUUSPerUnit: float64(i), Status: StatusOK,
		})
	}
	return f
}

func create(t *testing.T, parent string) *Dir {
	t.Helper()
	d := testkit.Must(CreateDir(parent, "", started, nil))(t)
	t.Cleanup(func() { _ = d.Close() })
	return d
}

func find(t *testing.T, path string) string {
	t.Helper()
	return testkit.Must(FindFile(path))(t)
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries := testkit.Must(os.ReadDir(dir))(t)
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// TestKilledLeavesWholeFiles kills a process that starts runs and writes results over and over: each result is whole.
func TestKilledLeavesWholeFiles(t *testing.T) {
	exe := testkit.Must(os.Executable())(t)
	for round := range 8 {
		parent := t.TempDir()
		cmd := exec.Command(exe)
		cmd.Env = append(os.Environ(), victimVariable+"="+parent)
		stdout := testkit.Must(cmd.StdoutPipe())(t)
		testkit.Succeed(t, cmd.Start())
		_, err := bufio.NewReader(stdout).ReadString('\n')
		testkit.Check(t, err == nil, "the first write: %v", err)
		// The process dies at an arbitrary moment of a later write.
		timer := time.NewTimer(time.Duration(7*round) * time.Millisecond)
		<-timer.C
		testkit.Succeed(t, cmd.Process.Kill())
		_ = cmd.Wait()
		checkWhole(t, parent)
	}
}

// checkWhole reads all results below a directory. Hidden ones were being written.
func checkWhole(t *testing.T, parent string) {
	t.Helper()
	read := 0
	err := filepath.WalkDir(parent, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() || strings.HasPrefix(entry.Name(), ".") {
			return err
		}
		f, err := Read(path)
		if err != nil {
			t.Error(err)
			return nil
		}
		read++
		testkit.Check(t, len(f.Rows) == 200 && f.Rows[0].CPUUSPerUnit == f.Rows[199].CPUUSPerUnit,
			"%s: half a file: %d rows", path, len(f.Rows))
		return nil
	})
	testkit.Check(t, err == nil && read != 0, "%d results, %v", read, err)
	_, err = Read(find(t, parent))
	testkit.Check(t, err == nil, "latest: %v", err)
}

// TestRunsDoNotOverwriteEachOther starts runs in one second, beside a result of a time in which
// runs did not have directories.
func TestRunsDoNotOverwriteEachOther(t *testing.T) {
	parent := filepath.Join(t.TempDir(), "a", "b")
	first := create(t, parent)
	path := filepath.Join(parent, "20261122T063512Z")
	testkit.Check(t, first.Path == path && first.Started.Equal(started.Truncate(time.Second)),
		"%s at %v, want %s", first.Path, first.Started, path)
	old := filepath.Join(parent, FileName)
	testkit.Succeed(t, os.WriteFile(old, []byte("old"), 0o600))
	got := find(t, parent)
	testkit.Check(t, got == old, "before the first result %s stands for %s", parent, got)
	empty := numbered(0)
	empty.Rows = nil
	testkit.Succeed(t, first.Write(empty))
	got = find(t, parent)
	testkit.Check(t, got == old, "before the first sample %s stands for %s", parent, got)
	for n, d := range []*Dir{first, create(t, parent), create(t, parent)} {
		for range 2 {
			testkit.Succeed(t, d.Write(numbered(n)))
		}
		want := filepath.Join(d.Path, FileName)
		for _, path := range []string{parent, d.Path, want, filepath.Join(parent, LatestName)} {
			got := find(t, path)
			testkit.Check(t, got == want || filepath.Base(path) == LatestName, "%s stands for %s, want %s", path, got, want)
		}
	}
	link, err := os.Readlink(filepath.Join(parent, LatestName))
	testkit.Check(t, err == nil && link == "20261122T063512Z-3", "latest is %q, %v", link, err)
	want := []string{"20261122T063512Z", "20261122T063512Z-2", "20261122T063512Z-3", LatestName, FileName}
	there := names(t, parent)
	testkit.Check(t, slices.Equal(there, want), "in it are %q, want %q", there, want)
	text, err := os.ReadFile(old)
	testkit.Check(t, err == nil && string(text) == "old", "the old result holds %q, %v", text, err)
	f, err := Read(filepath.Join(first.Path, FileName))
	testkit.Check(t, err == nil && f.Rows[0].CPUUSPerUnit == 0, "the first run's result was overwritten: %v", err)
}

// TestRefusedResultChangesNothing writes an invalid result.
func TestRefusedResultChangesNothing(t *testing.T) {
	d := create(t, t.TempDir())
	testkit.Succeed(t, d.Write(numbered(1)))
	bad := numbered(2)
	bad.Rows[0].Median = math.NaN()
	if err := d.Write(bad); err == nil || !strings.Contains(err.Error(), "median holds NaN") ||
		!strings.Contains(err.Error(), d.Path) {
		t.Errorf("NaN: %v", err)
	}
	f, err := Read(find(t, d.Path))
	testkit.Check(t, err == nil && f.Rows[0].CPUUSPerUnit == 1, "a refused write changed the file, %v", err)
	got := names(t, d.Path)
	testkit.Check(t, slices.Equal(got, []string{FileName}), "left behind: %q", got)
}

// TestCloseRemovesRunWithoutResult ends a run before its first result.
func TestCloseRemovesRunWithoutResult(t *testing.T) {
	top := t.TempDir()
	d := testkit.Must(CreateDir(filepath.Join(top, "a", "b"), "", started, nil))(t)
	testkit.Succeed(t, d.Close())
	got := names(t, top)
	testkit.Check(t, len(got) == 0, "left: %q", got)
}

// TestCreateErrors names the obstacle.
func TestCreateErrors(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	testkit.Succeed(t, os.WriteFile(file, nil, 0o600))
	testkit.Succeed(t, os.MkdirAll(filepath.Join(dir, "taken", LatestName), 0o700))
	for _, parent := range []string{file, filepath.Join(file, "x"), filepath.Join(dir, "taken"), "/proc/none", "\x00"} {
		_, err := CreateDir(parent, "", started, nil)
		testkit.Check(t, err != nil && strings.Contains(err.Error(), parent) && !strings.Contains(err.Error(), "\n"),
			"%q: %v", parent, err)
	}
	got := names(t, dir)
	testkit.Check(t, slices.Equal(got, []string{"file", "taken"}), "in it are %q", got)

	named := testkit.Must(CreateDir(dir, "before", started, nil))(t)
	testkit.Check(t, named.Path == filepath.Join(dir, "before"), "path %s", named.Path)
	_, err := CreateDir(dir, "before", started, nil)
	testkit.Check(t, err != nil && strings.HasSuffix(err.Error(), dir+": run before exists already: remove it, or take another name"), "twice: %v", err)
	testkit.Succeed(t, named.Close())
}

// TestFindErrors names the directory, and the missing file.
func TestFindErrors(t *testing.T) {
	dir := t.TempDir()
	link := func(name, target string) string {
		path := filepath.Join(dir, name)
		testkit.Succeed(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.Symlink(target, path)))
		return path
	}
	link("dangling/latest", "gone")
	link("loop/latest", "latest")
	link("self/results.json", "results.json")
	link("ring", "ring")
	testkit.Succeed(t, os.MkdirAll(filepath.Join(dir, "folder", FileName), 0o700))
	for path, want := range map[string]string{
		"none":                  "no such file",
		"":                      "neither results.json nor latest",
		"dangling":              "gone/results.json: no such file",
		"loop":                  "too many levels",
		"self":                  "too many levels",
		"folder":                "not a file",
		"folder/results.json/x": "no such file",
		"ring":                  "too many levels",
	} {
		_, err := FindFile(filepath.Join(dir, path))
		testkit.Check(t, err != nil && strings.Contains(err.Error(), want) && !strings.Contains(err.Error(), "\n"),
			"%q: %v, want %q in it", path, err, want)
	}
}

func TestReadErrors(t *testing.T) {
	for name, tt := range map[string]struct{ text, want string }{
		"other schema": {`{"schema":3,"rows":{"new":"layout"}}`, "unknown schema 3 (this program reads 2)"},
		"old schema":   {`{"schema":1,"rows":[]}`, "unknown schema 1"},
		"no schema":    {`{"rows":[]}`, "no schema number"},
		"half a file":  {`{"schema":2,"rows":[`, "unexpected end"},
		"wrong type":   {`{"schema":2,"rows":7}`, "rows"},
		"bad row":      {`{"schema":2,"rows":[{"id":"a"}]}`, `row 0 (a ): datapath "" is none of kernel, ebpf`},
	} {
		path := filepath.Join(t.TempDir(), "results.json")
		testkit.Succeed(t, os.WriteFile(path, []byte(tt.text), 0o600))
		_, err := Read(path)
		testkit.Check(t, err != nil && strings.Contains(err.Error(), tt.want) && strings.Contains(err.Error(), path),
			"%s: %v, want %q in it", name, err, tt.want)
	}
	_, err := Read(filepath.Join(t.TempDir(), "none"))
	testkit.Check(t, errors.Is(err, os.ErrNotExist), "missing file: %v", err)
}
