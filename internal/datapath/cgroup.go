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

	"mustang/internal/datapath/objects"
)

// cgroup is a control group that is held open.
type cgroup struct {
	dir *os.File
	id  uint64
	// path is its directory in this process's view, without symbolic links.
	path string
}

func (c *cgroup) close() { _ = c.dir.Close() }

// openCgroup opens the control group that has path as its directory. Errors: os.ErrNotExist, *objects.CgroupError.
func openCgroup(path string) (_ *cgroup, err error) {
	dir, err := os.OpenFile(path, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOTDIR) {
		return nil, &objects.CgroupError{Path: path}
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
		return nil, fmt.Errorf("statfs cgroup %q: %w", path, err)
	}
	if stat.Type != unix.CGROUP2_SUPER_MAGIC {
		return nil, &objects.CgroupError{Path: path}
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

// contains reports whether other is c or below it.
func (c *cgroup) contains(other *cgroup) bool {
	return c.id == other.id || strings.HasPrefix(other.path, strings.TrimSuffix(c.path, "/")+"/")
}

// links returns the links of the programs.
func (c *cgroup) links() []objects.Link {
	var links []objects.Link
	for _, h := range objects.AttachCgroup.Hooks() {
		links = append(links, objects.Link{Hook: h, ID: c.id})
	}
	return links
}

func closeCgroups(list []*cgroup) {
	for _, c := range list {
		c.close()
	}
}
