// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"mustang/internal/lock"
)

// Create creates a network namespace with a bind mount below Directory, so that `ip netns` lists it. Its loopback
// device is up. The error matches fs.ErrExist if the name is taken.
func Create(name string) (*Namespace, error) {
	return named("create network namespace", name, func(path string) (*Namespace, error) {
		return create(path, func() error { return unix.Mount(threadPath, path, "none", unix.MS_BIND, "") })
	})
}

// Bind gives the network namespace at path, such as /proc/PID/ns/net, a name below Directory. The error matches
// fs.ErrExist if the name is taken.
func Bind(path, name string) (*Namespace, error) {
	return named("name network namespace", name, func(target string) (*Namespace, error) {
		// Mount the descriptor, not the path: another process may have the PID by now.
		n, err := Open(path)
		if err != nil {
			return nil, err
		}
		if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", n.FD()), target, "none", unix.MS_BIND, ""); err != nil {
			_ = n.Close()
			return nil, fmt.Errorf("bind mount: %w", err)
		}
		n.path = target
		return n, nil
	})
}

func named(try, name string, mount func(path string) (*Namespace, error)) (*Namespace, error) {
	path, err := reserve(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", try, err)
	}
	n, err := mount(path)
	if err != nil {
		_ = Delete(name)
		return nil, fmt.Errorf("%s %q: %w", try, name, err)
	}
	return n, nil
}

func reserve(name string) (string, error) {
	path, err := namePath(name)
	if err != nil {
		return "", err
	}
	if err := prepareDirectory(context.Background(), Directory); err != nil {
		return "", fmt.Errorf("%q: %w", name, err)
	}
	// Mode 0 as in iproute2: without the mount the file is unreadable.
	file, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE|os.O_EXCL, 0)
	if err != nil {
		return "", err
	}
	return path, file.Close()
}

// New creates a network namespace without a name. Its loopback device is up. Close deletes it.
func New() (*Namespace, error) {
	n, err := create("(unnamed)", func() error { return nil })
	if err != nil {
		return nil, fmt.Errorf("create network namespace: %w", err)
	}
	return n, nil
}

func create(path string, keep func() error) (n *Namespace, err error) {
	unshare := func() error {
		err := unix.Unshare(unix.CLONE_NEWNET)
		if errors.Is(err, unix.EPERM) {
			return fmt.Errorf("%w: it needs CAP_SYS_ADMIN", err)
		}
		return err
	}
	err = onThread(unshare, restore, func() error {
		if err := loopbackUp(); err != nil {
			return err
		}
		fd, err := unix.Open(threadPath, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		if err := keep(); err != nil {
			_ = unix.Close(fd)
			return err
		}
		n = newNamespace(fd, path)
		return nil
	})
	return n, err
}

// Delete deletes the name of a network namespace. The kernel deletes the namespace when its last reference (an open
// Namespace, a process, a socket) is gone. If the name does not exist it returns nil.
func Delete(name string) error {
	path, err := namePath(name)
	if err != nil {
		return fmt.Errorf("delete network namespace: %w", err)
	}
	err = unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	// EINVAL: the file is there, but nothing is mounted on it.
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("delete network namespace %q: unmount: %w", name, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("delete network namespace %q: %w", name, err)
	}
	return nil
}

// List returns the names below Directory that start with prefix, sorted. It includes files without a mount, which a
// killed process may leave; Delete removes them.
func List(prefix string) ([]string, error) {
	entries, err := os.ReadDir(Directory)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list network namespaces: %w", err)
	}
	var names []string
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), prefix) {
			names = append(names, entry.Name())
		}
	}
	slices.Sort(names)
	return names, nil
}

func namePath(name string) (string, error) {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") || len(name) > unix.NAME_MAX {
		return "", fmt.Errorf("invalid network namespace name %q", name)
	}
	return filepath.Join(Directory, name), nil
}

// prepareDirectory makes dir a shared mount, as iproute2 does, so that its mounts propagate to other mount namespaces.
func prepareDirectory(ctx context.Context, dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	share := func() error { return unix.Mount("", dir, "none", unix.MS_SHARED|unix.MS_REC, "") }
	err := share()
	if errors.Is(err, unix.EINVAL) { // not a mount point yet
		// iproute2 takes the same lock for this.
		lock, lockErr := lock.Take(ctx, dir, nil)
		if lockErr != nil {
			return lockErr
		}
		defer lock.Unlock()
		if err = share(); errors.Is(err, unix.EINVAL) {
			if err := unix.Mount(dir, dir, "none", unix.MS_BIND|unix.MS_REC, ""); err != nil {
				return fmt.Errorf("bind mount %s: %w", dir, err)
			}
			err = share()
		}
	}
	if err != nil {
		return fmt.Errorf("make %s a shared mount: %w", dir, err)
	}
	return nil
}

func loopbackUp() error {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer handle.Close()
	link, err := handle.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find loopback device: %w", err)
	}
	if err := handle.LinkSetUp(link); err != nil {
		return fmt.Errorf("set loopback device up: %w", err)
	}
	return nil
}
