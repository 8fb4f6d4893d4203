// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mustang/internal/cgroup"
)

// TestSocketNested checks that Attach refuses a cgroup above or below an attached one, which would translate twice.
func TestSocketNested(t *testing.T) {
	d, above, beside := openTest(t), testCgroup(t), testCgroup(t)
	below := filepath.Join(above, "below")
	succeed(t, os.Mkdir(below, 0o700))
	t.Cleanup(func() { _ = os.Remove(below) })
	for _, paths := range [][2]string{{above, below}, {below, above}} {
		must(d.Sockets().Attach(t.Context(), paths[0]))(t)
		must(d.Sockets().Attach(t.Context(), beside))(t)
		var conflict *ConflictError
		if _, err := d.Sockets().Attach(t.Context(), paths[1]); !errors.As(err, &conflict) || !strings.Contains(err.Error(), paths[0]) {
			t.Errorf("%v, want a ConflictError that names %s", err, paths[0])
		}
		for _, path := range []string{paths[0], beside} {
			succeed(t, d.Sockets().Detach(t.Context(), path))
		}
	}
}

// TestSocketGone removes an attached cgroup and checks that its links are removed.
func TestSocketGone(t *testing.T) {
	d, path, other := openTest(t), testCgroup(t), testCgroup(t)
	must(d.Sockets().Attach(t.Context(), path))(t)
	succeed(t, unix.Rmdir(path))
	if list, err := d.Sockets().Cgroups(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("cgroups %v, %v", list, err)
	}
	if err := d.Sockets().Detach(t.Context(), path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("detach: %v", err)
	}
	must(d.Sockets().Attach(t.Context(), other))(t)
	if links, err := d.objects.Links(); err != nil || len(links) != 8 {
		t.Errorf("links %v, %v; want those of the other cgroup alone", links, err)
	}
}

// TestSocketBadPath attaches to paths that are not cgroups.
func TestSocketBadPath(t *testing.T) {
	d := openTest(t)
	testCgroup(t) // skips the test if sockets cannot be translated
	file := filepath.Join(t.TempDir(), "file")
	succeed(t, os.WriteFile(file, nil, 0o600))
	for _, path := range []string{t.TempDir(), file, "/nonexistent", ""} {
		_, err := d.Sockets().Attach(t.Context(), path)
		var none *cgroup.Error
		if !errors.As(err, &none) && !errors.Is(err, os.ErrNotExist) || !strings.Contains(fmt.Sprint(err), path) {
			t.Errorf("%q: %v", path, err)
		}
	}
}
