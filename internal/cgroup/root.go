// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"cmp"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Error reports that a path is not on a cgroup2 file system, or that none is mounted. It matches
// errors.ErrUnsupported.
type Error struct {
	// Path is the cgroup's directory; empty if no cgroup2 file system is mounted.
	Path string
}

func (e *Error) Error() string {
	if e.Path == "" {
		return "no cgroup2 file system is mounted: mount one with `mount -t cgroup2 cgroup2 /sys/fs/cgroup`"
	}
	return fmt.Sprintf("%q is not a cgroup: it is not on a cgroup2 file system", e.Path)
}

// Is makes the error match errors.ErrUnsupported.
func (e *Error) Is(target error) bool { return target == errors.ErrUnsupported }

// Root returns the mount point of the cgroup2 hierarchy: /sys/fs/cgroup, or /sys/fs/cgroup/unified on hosts that have
// version 1 as well. A container may have a part of the hierarchy there. The error is a *Error if there is none.
func Root() (string, error) {
	part := ""
	for _, path := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var mount unix.Statfs_t
		var dir unix.Stat_t
		if unix.Statfs(path, &mount) != nil || mount.Type != unix.CGROUP2_SUPER_MAGIC || unix.Stat(path, &dir) != nil {
			continue
		}
		if dir.Ino == 1 { // the root of the whole has that inode (cgroup_setup_root, kernel/cgroup/cgroup.c)
			return path, nil
		}
		part = cmp.Or(part, path)
	}
	if part == "" {
		return "", &Error{}
	}
	return part, nil
}
