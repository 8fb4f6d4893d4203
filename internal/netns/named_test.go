// SPDX-License-Identifier: Apache-2.0

package netns_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/testkit"
)

// TestBind names a namespace that has none, as that of a process.
func TestBind(t *testing.T) {
	first := testkit.Namespace(t, "first")
	name := first.Name() + "-again"
	named, err := netns.Bind(first.Path(), name)
	if err != nil {
		t.Fatal(err)
	}
	defer named.Close()
	defer netns.Delete(name)
	if named.Path() != filepath.Join(netns.Directory, name) {
		t.Errorf("path %s", named.Path())
	}
	opened, err := netns.Open(named.Path())
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	for _, ns := range []*netns.Namespace{named, opened} {
		want, _ := first.Inode()
		if got, err := ns.Inode(); err != nil || got != want {
			t.Errorf("inode %d, %v; want %d", got, err, want)
		}
	}
	if _, err := netns.Bind(first.Path(), name); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a name that is taken: %v", err)
	}
	if _, err := netns.Bind("/proc/self/ns/mnt", name+"-other"); err == nil {
		t.Error("bound a file that is not a network namespace")
	}
	if left, err := netns.List(name + "-other"); err != nil || len(left) > 0 {
		t.Errorf("left: %q, %v", left, err)
	}
}

// TestCreateNeedsNoLock names a namespace while another process has the lock of a directory that is a shared mount already.
func TestCreateNeedsNoLock(t *testing.T) {
	testkit.Namespace(t, "first")
	dir, err := os.Open(netns.Directory)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("mst-test-%d-unlocked", os.Getpid())
	ns, err := netns.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer netns.Delete(name)
	defer ns.Close()
}
