// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// fileSystem is a file system to mount.
type fileSystem struct {
	kind, path, options string
	tag                 string // the source, if it has a name
	flags               uintptr
	optional            bool // not in every kernel
}

// kernelMounts are mounted before the root.
var kernelMounts = []fileSystem{
	{kind: "proc", path: "/proc"},
	{kind: "sysfs", path: "/sys"},
	{kind: "devtmpfs", path: "/dev"},
}

// guestMounts cover the host's directories.
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

// enterRoot switches to a root of the host's directories. A bare guest stays in the initramfs.
func (s *system) enterRoot() error {
	if s.bare() {
		return nil
	}
	if err := s.buildRoot(); err != nil {
		return err
	}
	return s.switchRoot()
}

// bare reports whether the guest has no files of the host.
func (s *system) bare() bool { return len(s.config.Mounts) == 0 }

// newRoot is the mount point of the new root.
const newRoot = "/root"

// buildRoot mounts the host's directories, each below an overlay in memory for writes.
func (s *system) buildRoot() error {
	if err := mountAll(fileSystem{kind: "tmpfs", path: "/upper", options: "size=50%,mode=0755"}); err != nil {
		return err
	}
	for i, m := range s.config.Mounts {
		if m.Writable {
			continue
		}
		n := strconv.Itoa(i)
		lower, upper, work := filepath.Join("/lower", n), filepath.Join("/upper", n, "up"), filepath.Join("/upper", n, "work")
		if err := errors.Join(os.MkdirAll(upper, 0o755), os.MkdirAll(work, 0o755)); err != nil {
			return err
		}
		err := mountAll(
			fileSystem{kind: "virtiofs", tag: m.Tag, path: lower, flags: unix.MS_RDONLY},
			fileSystem{
				kind: "overlay", path: filepath.Join(newRoot, m.Path),
				options: "lowerdir=" + lower + ",upperdir=" + upper + ",workdir=" + work,
			})
		if err != nil {
			return err
		}
	}
	return nil
}

// switchRoot changes to the new root and frees the memory of the old one.
func (s *system) switchRoot() error {
	for _, f := range kernelMounts {
		if err := mountAll(fileSystem{tag: f.path, path: newRoot + f.path, flags: unix.MS_MOVE}); err != nil {
			return err
		}
	}
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

// populateRoot mounts the file systems that programs expect and sets up the system.
func (s *system) populateRoot() error {
	if err := mountAll(guestMounts...); err != nil {
		return err
	}
	for _, m := range s.config.Mounts {
		if m.Writable {
			if err := mountAll(fileSystem{kind: "virtiofs", tag: m.Tag, path: m.Path}); err != nil {
				return err
			}
		}
	}
	if !s.bare() {
		if err := s.mountModules(); err != nil {
			return err
		}
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

// mountModules mounts the modules where the kernel loads them on demand.
func (s *system) mountModules() error {
	name, err := release()
	if err != nil {
		return err
	}
	// modprobe looks for them there
	modules := filepath.Join("/lib/modules", name)
	if err := mountAll(fileSystem{tag: s.config.Modules, path: modules, flags: unix.MS_BIND}); err != nil {
		return err
	}
	return makeNodes(filepath.Join(modules, "modules.devname"))
}

// makeNodes creates the device nodes whose opening loads a module, such as
// /dev/net/tun, from depmod's list with lines such as "tun net/tun c10:200".
func makeNodes(list string) error {
	text, err := os.ReadFile(list)
	if err != nil {
		return fmt.Errorf("device nodes of modules: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		var module, name string
		var kind rune
		var major, minor uint32
		if _, err := fmt.Sscanf(line, "%s %s %c%d:%d", &module, &name, &kind, &major, &minor); err != nil || kind != 'c' {
			continue // a comment, or a disk
		}
		path := filepath.Join("/dev", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("device node of module %s: %w", module, err)
		}
		err := unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(major, minor)))
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("device node %s of module %s: %w", path, module, err)
		}
	}
	return nil
}

// loopbackUp sets the loopback device up.
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	request, err := unix.NewIfreq("lo")
	if err == nil {
		request.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
		err = unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request)
	}
	if err = errors.Join(err, unix.Close(fd)); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	return nil
}
