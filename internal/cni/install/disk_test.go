// SPDX-License-Identifier: Apache-2.0

package install

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

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
				testkit.Succeed(t, errors.Join(os.MkdirAll(p.BinDir, 0o755), os.MkdirAll(p.ConfDir, 0o755)))
				testkit.Succeed(t, unix.Mount("none", dir, "tmpfs", test.flags, test.options))
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

// TestOddFiles has something in the place of a file that is no regular one: Install says so at once, and replaces it if it is forced to.
func TestOddFiles(t *testing.T) {
	for _, name := range []string{"mustang-cni", "loopback", "10-mustang.conflist"} {
		for what, place := range map[string]func(path string) error{
			"named pipe": func(path string) error { return unix.Mkfifo(path, 0o644) },
			"endless":    func(path string) error { return os.Symlink("/dev/zero", path) },
			"huge":       func(path string) error { return errors.Join(os.WriteFile(path, nil, 0o644), os.Truncate(path, 1<<40)) },
		} {
			t.Run(name+" "+what, func(t *testing.T) {
				p, n := testPlace(t), network()
				mustInstall(t, p, conflist(t, n))
				path := filepath.Join(p.BinDir, name)
				if name == p.ConfName {
					path = p.Conf()
				}
				testkit.Succeed(t, errors.Join(os.Remove(path), place(path)))
				for _, force := range []bool{false, true} {
					done := make(chan error, 1)
					go func() {
						_, err := p.Install(t.Context(), program(), conflist(t, n), force)
						done <- err
					}()
					select {
					case err := <-done:
						if refused := !force || name == "loopback"; (err != nil) != refused || refused && !strings.Contains(err.Error(), path) {
							t.Errorf("with force %t: %v", force, err)
						}
					case <-time.After(20 * time.Second):
						t.Fatal("Install hangs")
					}
				}
			})
		}
	}
}
