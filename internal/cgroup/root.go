// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

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

// Root returns the mount point of the cgroup2 hierarchy: /sys/fs/cgroup, or mostly /sys/fs/cgroup/unified on hosts that
// have version 1 as well. The error is a *Error if there is none.
func Root() (string, error) {
	for _, path := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if isRoot(path) {
			return path, nil
		}
	}
	text, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return "", fmt.Errorf("find the cgroup2 file system: %w", err)
	}
	return findRoot(string(text))
}

// isRoot reports whether a directory is the whole hierarchy: only its root has the inode 1 (cgroup_setup_root,
// kernel/cgroup/cgroup.c). To read all mounts, of which there may be thousands, would take longer.
func isRoot(path string) bool {
	var mount unix.Statfs_t
	var dir unix.Stat_t
	return unix.Statfs(path, &mount) == nil && mount.Type == unix.CGROUP2_SUPER_MAGIC &&
		unix.Stat(path, &dir) == nil && dir.Ino == 1
}

// findRoot finds the mount in a mountinfo file (proc_pid_mountinfo(5)): one of the whole hierarchy if there is one,
// otherwise one of a part.
func findRoot(mountinfo string) (string, error) {
	part := ""
	for line := range strings.Lines(mountinfo) {
		before, after, _ := strings.Cut(line, " - ")
		mount, kind := strings.Fields(before), strings.Fields(after)
		if len(mount) < 5 || len(kind) < 1 || kind[0] != "cgroup2" {
			continue
		}
		path := unescape(mount[4])
		if mount[3] == "/" {
			return path, nil
		}
		if part == "" {
			part = path
		}
	}
	if part == "" {
		return "", &Error{}
	}
	return part, nil
}

// unescape decodes the characters that the kernel writes in octal: space, tab, newline and backslash.
func unescape(field string) string {
	var out strings.Builder
	for i := 0; i < len(field); i++ {
		if field[i] == '\\' && i+3 < len(field) {
			if code, err := strconv.ParseUint(field[i+1:i+4], 8, 8); err == nil {
				out.WriteByte(byte(code))
				i += 3
				continue
			}
		}
		out.WriteByte(field[i])
	}
	return out.String()
}
