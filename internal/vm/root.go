// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

type fileSystem struct {
	kind, path, options string
	tag                 string // the source, if it has a name
	flags               uintptr
	optional            bool // not in every kernel
}

var kernelMounts = []fileSystem{
	{kind: "proc", path: "/proc"},
	{kind: "sysfs", path: "/sys"},
	{kind: "devtmpfs", path: "/dev"},
}

var guestMounts = []fileSystem{
	{kind: "tmpfs", path: "/run", options: "mode=0755"},
	{kind: "tmpfs", path: "/dev/shm", options: "mode=1777"},
	{kind: "devpts", path: "/dev/pts", options: "ptmxmode=0666"},
	{kind: "cgroup2", path: "/sys/fs/cgroup"},
	{kind: "bpf", path: "/sys/fs/bpf", options: "mode=0700"},
	{kind: "tracefs", path: "/sys/kernel/tracing"},
	{kind: "debugfs", path: "/sys/kernel/debug", optional: true},
}

func mountAll(list ...fileSystem) error {
	for _, f := range list {
		// /sys has its directories and does not allow others
		if err := os.MkdirAll(f.path, 0o755); err != nil && !f.optional {
			return fmt.Errorf("mount %s: %w", f.path, err)
		}
		f.tag = cmp.Or(f.tag, f.kind)
		if err := unix.Mount(f.tag, f.path, f.kind, f.flags, f.options); err != nil && !f.optional {
			return fmt.Errorf("mount %s on %s: %w", f.tag, f.path, err)
		}
	}
	return nil
}

const newRoot = "/root"

// enterRoot switches to a root of the host's directories, each below an overlay in memory for writes. A bare guest,
// without such directories, stays in the initramfs.
func (s *system) enterRoot() error {
	if len(s.config.Mounts) == 0 {
		return nil
	}
	if err := mountAll(fileSystem{kind: "tmpfs", path: "/upper", options: "size=50%,mode=0755"}); err != nil {
		return err
	}
	var list []fileSystem
	for i, m := range s.config.Mounts {
		if m.Writable {
			continue
		}
		lower, upper, work := fmt.Sprintf("/lower/%d", i), fmt.Sprintf("/upper/%d/up", i), fmt.Sprintf("/upper/%d/work", i)
		if err := errors.Join(os.MkdirAll(upper, 0o755), os.Mkdir(work, 0o755)); err != nil {
			return err
		}
		list = append(list, fileSystem{kind: "virtiofs", tag: m.Tag, path: lower, flags: unix.MS_RDONLY},
			fileSystem{kind: "overlay", path: filepath.Join(newRoot, m.Path),
				options: "lowerdir=" + lower + ",upperdir=" + upper + ",workdir=" + work})
	}
	for _, f := range kernelMounts {
		list = append(list, fileSystem{tag: f.path, path: newRoot + f.path, flags: unix.MS_MOVE})
	}
	if err := mountAll(list...); err != nil {
		return err
	}
	// frees the memory of the old root
	if err := errors.Join(os.RemoveAll(modulePath), os.Remove(initPath)); err != nil {
		return err
	}
	if err := unix.Chdir(newRoot); err != nil {
		return fmt.Errorf("enter the new root: %w", err)
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move the new root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("change to the new root: %w", err)
	}
	return unix.Chdir("/")
}

func (s *system) populateRoot() error {
	list := guestMounts
	for _, m := range s.config.Mounts {
		if m.Writable {
			list = append(list, fileSystem{kind: "virtiofs", tag: m.Tag, path: m.Path})
		}
	}
	if len(s.config.Mounts) > 0 { // where the kernel looks for modules
		modules := filepath.Join("/lib/modules", filepath.Base(s.config.Modules))
		list = append(list, fileSystem{tag: s.config.Modules, path: modules, flags: unix.MS_BIND})
	}
	if err := mountAll(list...); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte("guest")); err != nil {
		return fmt.Errorf("set the host name: %w", err)
	}
	limit := unix.Rlimit{Cur: 1 << 20, Max: 1 << 20}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("raise the limit of open files: %w", err)
	}
	return loopbackUp()
}

func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	defer unix.Close(fd)
	request, _ := unix.NewIfreq("lo")
	request.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	return nil
}
