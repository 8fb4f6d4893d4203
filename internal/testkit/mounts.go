// SPDX-License-Identifier: Apache-2.0

package testkit

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// BPFFS returns a new directory on a BPF file system, which is removed with all pins in
// it when the test ends. It uses /sys/fs/bpf if that is a BPF file system, else it
// mounts one.
func BPFFS(t testing.TB) string {
	t.Helper()
	RequireRoot(t)
	parent := "/sys/fs/bpf"
	if !isBPFFS(parent) {
		parent = t.TempDir()
		if err := unix.Mount("bpf", parent, "bpf", 0, ""); err != nil {
			t.Fatalf("mount a BPF file system: %v", err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(parent, unix.MNT_DETACH); err != nil {
				t.Errorf("unmount %s: %v", parent, err)
			}
		})
	}
	dir, err := os.MkdirTemp(parent, "mst-test-")
	Succeed(t, err)
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func isBPFFS(path string) bool {
	var stat unix.Statfs_t
	return unix.Statfs(path, &stat) == nil && stat.Type == unix.BPF_FS_MAGIC
}

// Cgroup creates an empty control group of version 2 and returns its directory. It is
// removed when the test ends; its processes have to end before. The test is skipped
// without a hierarchy of version 2.
func Cgroup(t testing.TB) string {
	t.Helper()
	RequireRoot(t)
	mounts, err := os.ReadFile("/proc/self/mounts")
	Succeed(t, err)
	for line := range strings.Lines(string(mounts)) {
		fields := strings.Fields(line)
		if len(fields) < 3 || fields[2] != "cgroup2" {
			continue
		}
		path, err := os.MkdirTemp(fields[1], fmt.Sprintf("mst-test-%d-", os.Getpid()))
		Succeed(t, err)
		t.Cleanup(func() {
			Eventually(t, 10*time.Second, func() error { return unix.Rmdir(path) })
		})
		return filepath.Clean(path)
	}
	Skip(t, "needs a cgroup v2 file system")
	return ""
}
