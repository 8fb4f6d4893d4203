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
)

// TestSocketNested refuses to translate twice.
func TestSocketNested(t *testing.T) {
	d, above, beside := openTest(t), testCgroup(t), testCgroup(t)
	below := filepath.Join(above, "below")
	if err := os.Mkdir(below, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(below) })
	for _, paths := range [][2]string{{above, below}, {below, above}} {
		if _, err := d.AttachSocket(paths[0]); err != nil {
			t.Fatal(err)
		}
		if _, err := d.AttachSocket(beside); err != nil {
			t.Fatal(err)
		}
		var conflict *ConflictError
		if _, err := d.AttachSocket(paths[1]); !errors.As(err, &conflict) || !strings.Contains(err.Error(), paths[0]) {
			t.Errorf("%v, want a ConflictError that names %s", err, paths[0])
		}
		for _, path := range []string{paths[0], beside} {
			if err := d.DetachSocket(path); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestSocketGone forgets a cgroup that is no more.
func TestSocketGone(t *testing.T) {
	d, path, other := openTest(t), testCgroup(t), testCgroup(t)
	if _, err := d.AttachSocket(path); err != nil {
		t.Fatal(err)
	}
	if err := unix.Rmdir(path); err != nil {
		t.Fatal(err)
	}
	if list, err := d.SocketCgroups(); err != nil || len(list) != 0 {
		t.Errorf("cgroups %v, %v", list, err)
	}
	if err := d.DetachSocket(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("detach: %v", err)
	}
	if _, err := d.AttachSocket(other); err != nil {
		t.Fatal(err)
	}
	if links, err := d.socketLinks(); err != nil || len(links) != 8 {
		t.Errorf("links %v, %v; want those of the other cgroup alone", links, err)
	}
}

// TestSocketBadPath is given what is no cgroup.
func TestSocketBadPath(t *testing.T) {
	d := openTest(t)
	testCgroup(t) // or skip
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{t.TempDir(), file, "/nonexistent", ""} {
		_, err := d.AttachSocket(path)
		var none *CgroupError
		if !errors.As(err, &none) && !errors.Is(err, os.ErrNotExist) || !strings.Contains(fmt.Sprint(err), path) {
			t.Errorf("%q: %v", path, err)
		}
	}
}

func TestCgroupRoot(t *testing.T) {
	const v1 = "33 31 0:30 / /sys/fs/cgroup/cpuacct rw,relatime - cgroup cgroup rw,cpuacct\n"
	for _, row := range []struct{ name, text, want string }{
		{"version 2", "25 20 0:22 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n", "/sys/fs/cgroup"},
		{"hybrid", v1 + "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n", "/sys/fs/cgroup/unified"},
		{"a part first", "1 2 0:3 /a /mnt rw - cgroup2 x rw\n2 2 0:3 / /cg rw - cgroup2 x rw\n", "/cg"},
		{"only a part", v1 + "1 2 0:3 /a /mnt rw - cgroup2 x rw\n", "/mnt"},
		{"a space", `1 2 0:3 / /my\040groups\134 rw shared:1 master:2 - cgroup2 x rw` + "\n", `/my groups\`},
		{"version 1", v1, ""},
		{"cut off", "1 2 0:3 / - cgroup2\n", ""},
		{"nothing", "", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			got, err := cgroupRoot(row.text)
			if got != row.want || (err != nil) != (row.want == "") {
				t.Errorf("%q, %v; want %q", got, err, row.want)
			}
			if err != nil && !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("%v does not match ErrUnsupported", err)
			}
		})
	}
}

func TestSocketLinkPins(t *testing.T) {
	l := layout{root: "/r"}
	for _, h := range socketHooks() {
		id, program, ok := parseSocketLinkPin(filepath.Base(l.socketLinkPin(1<<40, h.program)))
		if id != 1<<40 || program != h.program || !ok {
			t.Errorf("%s: %d, %s, %v", h.program, id, program, ok)
		}
	}
	for _, name := range []string{"3-host-from_pod", "cgroup-x-connect4", "cgroup-7-connect5", "cgroup-7", "cgroup-"} {
		if _, _, ok := parseSocketLinkPin(name); ok {
			t.Errorf("%q is taken for a link", name)
		}
	}
}
