// SPDX-License-Identifier: Apache-2.0

package testkit

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// BPFFS returns a fresh directory on a BPF file system, which is removed with
// all pins in it when the test is over. It uses /sys/fs/bpf, or mounts a file
// system of its own where that is none.
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
	if err != nil {
		t.Fatal(err)
	}
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
