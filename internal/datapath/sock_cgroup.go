// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// CgroupError says that there is no file system of control groups of version 2 where one is needed. It matches
// errors.ErrUnsupported.
type CgroupError struct {
	// Path is what was given for a cgroup; empty if none was and there is no such file system at all.
	Path string
}

func (e *CgroupError) Error() string {
	if e.Path == "" {
		return "no cgroup2 file system is mounted: mount one with `mount -t cgroup2 cgroup2 /sys/fs/cgroup`"
	}
	return fmt.Sprintf("%q is no cgroup: it is not on a cgroup2 file system", e.Path)
}

// Is makes the error match errors.ErrUnsupported.
func (e *CgroupError) Is(target error) bool { return target == errors.ErrUnsupported }

// CgroupRoot returns the directory that the hierarchy of control groups of version 2 is mounted on: /sys/fs/cgroup, or
// on hosts that have version 1 as well mostly /sys/fs/cgroup/unified. The error is a *CgroupError if there is none.
func CgroupRoot() (string, error) {
	for _, path := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if isCgroupRoot(path) {
			return path, nil
		}
	}
	text, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return "", fmt.Errorf("look for the cgroup2 file system: %w", err)
	}
	return cgroupRoot(string(text))
}

// isCgroupRoot is whether a directory is the whole hierarchy: there the root's id is 1, and no other group's
// (cgroup_setup_root, kernel/cgroup/cgroup.c). It is quicker than to read all mounts, of which there may be thousands.
func isCgroupRoot(path string) bool {
	var mount unix.Statfs_t
	var dir unix.Stat_t
	return unix.Statfs(path, &mount) == nil && mount.Type == unix.CGROUP2_SUPER_MAGIC &&
		unix.Stat(path, &dir) == nil && dir.Ino == 1
}

// cgroupRoot finds the mount in a mountinfo file (proc_pid_mountinfo(5)): one of the whole hierarchy if there is one,
// otherwise one of a part.
func cgroupRoot(mountinfo string) (string, error) {
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
		return "", &CgroupError{}
	}
	return part, nil
}

// unescape puts back what the kernel writes in octal: space, tab, newline and backslash.
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

// cgroup is a control group that is held open.
type cgroup struct {
	dir *os.File
	id  uint64
	// path is where it is in this process's view, without symbolic links.
	path string
}

func (c *cgroup) close() { _ = c.dir.Close() }

// openCgroup opens the control group that has path as its directory. Errors: os.ErrNotExist, *CgroupError.
func openCgroup(path string) (_ *cgroup, err error) {
	dir, err := os.OpenFile(path, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOTDIR) {
		return nil, &CgroupError{Path: path}
	}
	if err != nil {
		return nil, fmt.Errorf("open cgroup: %w", err)
	}
	return newCgroup(dir, path)
}

// newCgroup takes over dir.
func newCgroup(dir *os.File, path string) (_ *cgroup, err error) {
	defer func() {
		if err != nil {
			_ = dir.Close()
		}
	}()
	var stat unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &stat); err != nil {
		return nil, fmt.Errorf("look at cgroup %q: %w", path, err)
	}
	if stat.Type != unix.CGROUP2_SUPER_MAGIC {
		return nil, &CgroupError{Path: path}
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
	return &cgroup{dir: dir, id: binary.NativeEndian.Uint64(handle.Bytes()), path: filepath.Clean(where)}, nil
}

// openCgroupID opens the control group that has the id. The error matches os.ErrNotExist if it is gone.
func openCgroupID(root *cgroup, id uint64) (*cgroup, error) {
	const fileidKernfs = 0xfe // FILEID_KERNFS, <linux/exportfs.h>
	handle := unix.NewFileHandle(fileidKernfs, binary.NativeEndian.AppendUint64(nil, id))
	fd, err := unix.OpenByHandleAt(int(root.dir.Fd()), handle, unix.O_DIRECTORY|unix.O_CLOEXEC)
	what := "cgroup " + strconv.FormatUint(id, 10)
	if errors.Is(err, unix.ESTALE) {
		return nil, &NotFoundError{What: what}
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", what, err)
	}
	return newCgroup(os.NewFile(uintptr(fd), what), what)
}

// holds is whether other is c or lies below it.
func (c *cgroup) holds(other *cgroup) bool {
	return c.id == other.id || strings.HasPrefix(other.path, strings.TrimSuffix(c.path, "/")+"/")
}
