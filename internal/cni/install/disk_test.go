// SPDX-License-Identifier: Apache-2.0

package install

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"mustang/internal/testkit"
)

// TestDisk installs onto disks that are full or read-only: each directory in turn.
func TestDisk(t *testing.T) {
	testkit.RequireRoot(t)
	for _, test := range []struct {
		name, options string
		flags         uintptr
		want          error
	}{
		{"full", "size=4k", 0, unix.ENOSPC},
		{"read-only", "", unix.MS_RDONLY, unix.EROFS},
	} {
		for _, which := range []string{"plugin", "conflist"} {
			t.Run(test.name+" for the "+which, func(t *testing.T) {
				p := testPlace(t)
				dir := p.BinDir
				if which == "conflist" {
					dir = p.ConfDir
				}
				if err := os.MkdirAll(dir, 0o755); err != nil {
					t.Fatal(err)
				}
				if err := unix.Mount("none", dir, "tmpfs", test.flags, test.options); err != nil {
					t.Fatal(err)
				}
				defer func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }()
				if test.flags == 0 {
					writeFile(t, filepath.Join(dir, "other"), "x") // a page: all there is
				}
				before := tree(t, p)
				if _, err := p.Install(t.Context(), program(), conflist(t, network()), false); !errors.Is(err, test.want) {
					t.Errorf("%v, want %v", err, test.want)
				}
				if after := tree(t, p); after != before {
					t.Errorf("before\n%s\nafter\n%s", before, after)
				}
			})
		}
	}
}
