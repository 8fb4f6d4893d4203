// SPDX-License-Identifier: Apache-2.0

// Package cgroup finds control groups of version 2.
package cgroup

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Group is a control group that is held open.
type Group struct {
	ID   uint64 // its number in the kernel, which no other group gets while the machine is up
	Path string // its directory in this process's view, without symbolic links

	dir *os.File
}

// Close lets go of the group. The kernel keeps it.
func (g *Group) Close() { _ = g.dir.Close() }

// FD returns a file descriptor of its directory, which is valid until Close.
func (g *Group) FD() int { return int(g.dir.Fd()) }

// Open opens the control group that has path as its directory. Errors: os.ErrNotExist, *Error.
func Open(path string) (_ *Group, err error) {
	dir, err := os.OpenFile(path, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOTDIR) {
		return nil, &Error{Path: path}
	}
	if err != nil {
		return nil, fmt.Errorf("open cgroup: %w", err)
	}
	return newGroup(dir, path)
}

func newGroup(dir *os.File, path string) (_ *Group, err error) {
	defer func() {
		if err != nil {
			_ = dir.Close()
		}
	}()
	var stat unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &stat); err != nil {
		return nil, fmt.Errorf("statfs cgroup %q: %w", path, err)
	}
	if stat.Type != unix.CGROUP2_SUPER_MAGIC {
		return nil, &Error{Path: path}
	}
	handle, _, err := unix.NameToHandleAt(int(dir.Fd()), "", unix.AT_EMPTY_PATH)
	if err != nil {
		return nil, fmt.Errorf("read id of cgroup %q: %w", path, err)
	}
	if handle.Size() != 8 {
		return nil, fmt.Errorf("read id of cgroup %q: it has %d bytes", path, handle.Size())
	}
	where, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", dir.Fd()))
	if err != nil {
		return nil, fmt.Errorf("find path of cgroup %q: %w", path, err)
	}
	return &Group{dir: dir, ID: binary.NativeEndian.Uint64(handle.Bytes()), Path: filepath.Clean(where)}, nil
}

// OpenID opens the group that has the ID, in the hierarchy of g. The error matches os.ErrNotExist if it is gone.
func (g *Group) OpenID(id uint64) (*Group, error) {
	const fileidKernfs = 0xfe // FILEID_KERNFS, <linux/exportfs.h>
	handle := unix.NewFileHandle(fileidKernfs, binary.NativeEndian.AppendUint64(nil, id))
	fd, err := unix.OpenByHandleAt(g.FD(), handle, unix.O_DIRECTORY|unix.O_CLOEXEC)
	what := "cgroup " + strconv.FormatUint(id, 10)
	if errors.Is(err, unix.ESTALE) {
		return nil, fmt.Errorf("open %s: %w", what, os.ErrNotExist)
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", what, err)
	}
	return newGroup(os.NewFile(uintptr(fd), what), what)
}

// Contains reports whether other is g or below it.
func (g *Group) Contains(other *Group) bool {
	return g.ID == other.ID || strings.HasPrefix(other.Path, strings.TrimSuffix(g.Path, "/")+"/")
}

// Error reports that a path is not on a cgroup2 file system, or that none is mounted. It matches errors.ErrUnsupported.
type Error struct {
	Path string // the cgroup's directory; empty if no cgroup2 file system is mounted
}

func (e *Error) Error() string {
	if e.Path == "" {
		return "no cgroup2 file system is mounted: mount one with `mount -t cgroup2 cgroup2 /sys/fs/cgroup`"
	}
	return fmt.Sprintf("%q is not a cgroup: it is not on a cgroup2 file system", e.Path)
}

// Is makes the error match errors.ErrUnsupported.
func (e *Error) Is(target error) bool { return target == errors.ErrUnsupported }

// isWhole reports whether a directory of a cgroup2 file system is the root of the whole hierarchy, not of a container's
// part. The root of the whole has inode 1 (cgroup_setup_root, kernel/cgroup/cgroup.c).
func isWhole(path string) bool {
	var dir unix.Stat_t
	return unix.Stat(path, &dir) == nil && dir.Ino == 1
}

// Root returns the mount point of the cgroup2 hierarchy: /sys/fs/cgroup, or /sys/fs/cgroup/unified on hosts that have
// version 1 as well. A container may have a part of the hierarchy there. The error is a *Error if there is none.
func Root() (string, error) {
	part := ""
	for _, path := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var mount unix.Statfs_t
		if unix.Statfs(path, &mount) != nil || mount.Type != unix.CGROUP2_SUPER_MAGIC {
			continue
		}
		if isWhole(path) {
			return path, nil
		}
		part = cmp.Or(part, path)
	}
	if part == "" {
		return "", &Error{}
	}
	return part, nil
}
