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

// Cgroup makes a control group of version 2 without processes, and returns its
// directory. It is gone when the test is over; the processes in it must be. Where
// there is no hierarchy of version 2 the test is skipped.
func Cgroup(t testing.TB) string {
	t.Helper()
	RequireRoot(t)
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		fields := strings.Fields(line)
		if len(fields) < 3 || fields[2] != "cgroup2" {
			continue
		}
		path, err := os.MkdirTemp(fields[1], fmt.Sprintf("mst-test-%d-", os.Getpid()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			Eventually(t, 10*time.Second, func() error { return unix.Rmdir(path) })
		})
		return filepath.Clean(path)
	}
	Skip(t, "there is no file system of control groups of version 2")
	return ""
}
