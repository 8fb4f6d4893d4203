// SPDX-License-Identifier: Apache-2.0

package result

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mustang/internal/testkit"
)

var user = Owner{UID: 12345, GID: 23456} // owns what root creates for them

func ownerOf(t *testing.T, path string) (Owner, fs.FileMode) {
	t.Helper()
	var stat unix.Stat_t
	testkit.Succeed(t, unix.Lstat(path, &stat))
	info := testkit.Must(os.Lstat(path))(t)
	return Owner{int(stat.Uid), int(stat.Gid)}, info.Mode()
}

// TestResultsBelongToTheUserOfSudo checks owner and mode of what a run creates, and that nothing else changes.
func TestResultsBelongToTheUserOfSudo(t *testing.T) {
	testkit.RequireRoot(t)
	defer unix.Umask(unix.Umask(0o022))
	top := t.TempDir()
	before, _ := ownerOf(t, top)
	parent := filepath.Join(top, "a", "b")
	d := testkit.Must(CreateDir(parent, "", started, &user))(t)
	defer d.Close()
	testkit.Succeed(t, d.Write(numbered(1)))
	page := filepath.Join(d.Path, PageName)
	testkit.Succeed(t, user.WriteFile(page, []byte("page")))
	for path, mode := range map[string]fs.FileMode{
		filepath.Dir(parent): fs.ModeDir | 0o755, parent: fs.ModeDir | 0o755, d.Path: fs.ModeDir | 0o755,
		filepath.Join(d.Path, FileName): 0o644, page: 0o644,
	} {
		owner, got := ownerOf(t, path)
		testkit.Check(t, owner == user && got == mode, "%s: %v %v, want %v %v", path, owner, got, user, mode)
	}
	owner, _ := ownerOf(t, top)
	testkit.Check(t, owner == before, "%s, which was there, was given to %v", top, owner)
}

// TestLinksAreNotFollowed puts symbolic links to root's files where results and pages are written.
func TestLinksAreNotFollowed(t *testing.T) {
	testkit.RequireRoot(t)
	top := t.TempDir()
	secret := filepath.Join(top, "secret")
	testkit.Succeed(t, os.WriteFile(secret, []byte("secret"), 0o600))
	parent := filepath.Join(top, "out")
	d := testkit.Must(CreateDir(parent, "", started, &user))(t)
	defer d.Close()
	page := filepath.Join(d.Path, PageName)
	for _, path := range []string{page, filepath.Join(d.Path, FileName), filepath.Join(parent, LatestName)} {
		testkit.Succeed(t, os.Symlink(secret, path))
	}
	testkit.Succeed(t, d.Write(numbered(1)))
	testkit.Succeed(t, user.WriteFile(page, []byte("page")))
	for _, path := range []string{page, filepath.Join(d.Path, FileName)} {
		owner, mode := ownerOf(t, path)
		testkit.Check(t, owner == user && mode.IsRegular(), "%s: %v %v, want a file of the user", path, owner, mode)
	}
	link, err := os.Readlink(filepath.Join(parent, LatestName))
	testkit.Check(t, err == nil && link == filepath.Base(d.Path), "latest is %q, %v", link, err)
	text, err := os.ReadFile(secret)
	if owner, mode := ownerOf(t, secret); owner != (Owner{}) || mode != 0o600 || err != nil || string(text) != "secret" {
		t.Errorf("the file behind the links: %v %v %q, %v", owner, mode, text, err)
	}
	// A directory that was replaced by a link to elsewhere is not entered.
	testkit.Succeed(t, os.Symlink(top, filepath.Join(parent, "link")))
	if dir, err := d.parent.OpenRoot("link"); err == nil {
		_ = dir.Close()
		t.Error("a link was opened as a directory")
	}
}

// TestSudoUser takes nothing but two numbers.
func TestSudoUser(t *testing.T) {
	testkit.RequireRoot(t)
	for _, tt := range []struct {
		uid, gid string
		want     *Owner
	}{
		{"1000", "1001", &Owner{1000, 1001}}, {"0", "0", &Owner{}}, {"", "", nil}, {"1000", "", nil}, {"", "1000", nil},
		{"-1", "0", nil}, {"4294967295", "0", nil}, {"0", "4294967295", nil}, {"1000 ", "1000", nil}, {"0x3e8", "1000", nil},
		{"me", "us", nil}, {"1e3", "1000", nil}, {"99999999999999999999", "1", nil},
	} {
		got := SudoUser(func(name string) string { return map[string]string{"SUDO_UID": tt.uid, "SUDO_GID": tt.gid}[name] })
		testkit.Check(t, (got == nil) == (tt.want == nil) && (got == nil || *got == *tt.want),
			"%q:%q: %v, want %v", tt.uid, tt.gid, got, tt.want)
	}
}

// TestReadTakesLittleMemory reads files of a few megabytes that would decode to gigabytes.
func TestReadTakesLittleMemory(t *testing.T) {
	for name, entry := range map[string]string{"objects": "{}", "null": "null", "numbers": "0.5", "strings": `""`,
		"lists": "[]"} {
		t.Run(name, func(t *testing.T) {
			list := strings.Repeat(entry+",", 5_000_000) + entry
			path := filepath.Join(t.TempDir(), "results.json")
			testkit.Succeed(t, os.WriteFile(path, fmt.Appendf(nil, `{"schema":%d,"rows":[%s]}`, Schema, list), 0o600))
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := Read(path)
			runtime.ReadMemStats(&after)
			testkit.Check(t, err != nil && strings.Contains(err.Error(), "the most is"), "error %v", err)
			mb := (after.TotalAlloc - before.TotalAlloc) >> 20
			testkit.Check(t, mb <= 200, "%d MB were allocated", mb)
		})
	}
}

// TestScan counts entries of lists other than numbers, outside of strings.
func TestScan(t *testing.T) {
	golden := testkit.Must(os.ReadFile("testdata/golden.json"))(t)
	full := append(bytes.Repeat([]byte(`"a",`), maxEntries/2-1), `"a"],[`...)
	full = append(full, bytes.Repeat([]byte(`"a",`), maxEntries/2-3)...) // with the two lists, all but one entry
	for _, c := range []struct {
		text string
		want bool
	}{
		{string(golden), false},
		{"[[" + string(full) + `"\\\",[]"]]`, false},
		{"[[" + string(full) + `"", ""]]`, true},
		{"[[" + string(full) + `"", -1, 2]]`, false},
		{"[[" + string(full) + "{}, null]]", true},
		{"[" + strings.Repeat("0,", MaxSamples-1) + "0]", false},
		{"[" + strings.Repeat("0,", MaxSamples) + "0]", true},
		{`{"a": "` + strings.Repeat("[{},", maxEntries) + `"}`, false},
		{strings.Repeat("]", 10) + `"\`, false},
	} {
		got := scan([]byte(c.text)).err()
		testkit.Check(t, (got != nil) == c.want, "%.40s...: problems %v", c.text, got)
	}
}

// TestWritesOnlyWhatIsRead checks that a file is not written that its reader would refuse, though each
// of its parts keeps its limit.
func TestWritesOnlyWhatIsRead(t *testing.T) {
	file := func(rows int) File {
		f := File{Schema: Schema, Suites: []Suite{{Name: "pod-links", Question: "?", Layout: LayoutMatrix,
			Answer: []string{AnswerFastest}}}}
		for i := range rows {
			f.Rows = append(f.Rows, Row{
				Suite: "pod-links", ID: fmt.Sprint(i), Link: "veth", Datapath: DatapathKernel, Placement: PlacementSameHost,
				Overlay: OverlayNone,
				Target:  TargetPodIP, Via: ViaNone, Workload: WorkloadTCPRR, Status: StatusOK, Engine: "native",
				Unit:    UnitTransactions,
				Samples: []float64{1}, Evidence: Evidence{Hooks: slices.Repeat([]string{"host"}, maxList)},
			})
		}
		return f
	}
	data, err := Marshal(file(60))
	filled := scan(data).filled()
	testkit.Check(t, err == nil && !(filled < 0.2) && !(filled > 0.5), "a file of 60 rows: %v, filled %g", err, filled)
	_, err = Marshal(file(200))
	testkit.Check(t, err != nil && strings.Contains(err.Error(), "the most is"), "a file of 200 rows: %v", err)
}
