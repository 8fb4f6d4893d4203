// SPDX-License-Identifier: Apache-2.0

package result

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"mustang/internal/testkit"
)

// user owns what root creates for them.
var user = Owner{UID: 12345, GID: 23456}

func ownerOf(t *testing.T, path string) (Owner, fs.FileMode) {
	t.Helper()
	var stat unix.Stat_t
	testkit.Succeed(t, unix.Lstat(path, &stat))
	info, err := os.Lstat(path)
	testkit.Succeed(t, err)
	return Owner{int(stat.Uid), int(stat.Gid)}, info.Mode()
}

// TestResultsBelongToTheUserOfSudo checks owner and mode of what a run creates, and that nothing else changes.
func TestResultsBelongToTheUserOfSudo(t *testing.T) {
	testkit.RequireRoot(t)
	defer unix.Umask(unix.Umask(0o022))
	top := t.TempDir()
	before, _ := ownerOf(t, top)
	parent := filepath.Join(top, "a", "b")
	d, err := CreateDir(parent, started, &user)
	testkit.Succeed(t, err)
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
	d, err := CreateDir(parent, started, &user)
	testkit.Succeed(t, err)
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
	if link, err := os.Readlink(filepath.Join(parent, LatestName)); err != nil || link != filepath.Base(d.Path) {
		t.Errorf("latest is %q, %v", link, err)
	}
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
