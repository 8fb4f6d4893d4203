// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// CreateNamespace creates a network namespace that is kept by a bind mount
// below Directory, so that `ip netns` sees it too. Its loopback device is up. A
// name that is taken is an error that matches fs.ErrExist, and is left alone.
func CreateNamespace(name string) (_ *Namespace, err error) {
	path, err := reserve(name)
	if err != nil {
		return nil, fmt.Errorf("create network namespace: %w", err)
	}
	defer func() {
		if err != nil {
			_ = DeleteNamespace(name)
		}
	}()
	n, err := create(path, func() error {
		return unix.Mount(threadPath, path, "none", unix.MS_BIND, "")
	})
	if err != nil {
		return nil, fmt.Errorf("create network namespace %q: %w", name, err)
	}
	return n, nil
}

// reserve makes the file that a namespace of that name is mounted on, and returns
// its path.
func reserve(name string) (string, error) {
	path, err := namePath(name)
	if err != nil {
		return "", err
	}
	if err := prepareDirectory(Directory); err != nil {
		return "", fmt.Errorf("%q: %w", name, err)
	}
	// Mode 0 like iproute2: the plain file means nothing without the mount.
	file, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE|os.O_EXCL, 0)
	if err != nil {
		return "", err
	}
	return path, file.Close()
}

// NameNamespace gives the network namespace at path, such as /proc/PID/ns/net, a
// name below Directory, as if CreateNamespace had made it. A name that is taken
// is an error that matches fs.ErrExist, and is left alone.
func NameNamespace(path, name string) (_ *Namespace, err error) {
	target, err := reserve(name)
	if err != nil {
		return nil, fmt.Errorf("name network namespace: %w", err)
	}
	defer func() {
		if err != nil {
			_ = DeleteNamespace(name)
		}
	}()
	// The same one even if the process at path is another by now.
	n, err := OpenNamespace(path)
	if err != nil {
		return nil, fmt.Errorf("name network namespace %q: %w", name, err)
	}
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", n.FD()), target, "none", unix.MS_BIND, ""); err != nil {
		_ = n.Close()
		return nil, fmt.Errorf("name network namespace %q: bind mount: %w", name, err)
	}
	n.path = target
	return n, nil
}

// NewNamespace creates a network namespace without a name, which ends on Close.
// Its loopback device is up.
func NewNamespace() (*Namespace, error) {
	n, err := create("(unnamed)", func() error { return nil })
	if err != nil {
		return nil, fmt.Errorf("create network namespace: %w", err)
	}
	return n, nil
}

// create makes a network namespace on a thread of its own, and has keep called
// inside it.
func create(path string, keep func() error) (n *Namespace, err error) {
	unshare := func() error { return unix.Unshare(unix.CLONE_NEWNET) }
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

// DeleteNamespace removes the name of a network namespace, which ends it once
// nothing else holds it (an open Namespace, a process, a socket). It is no error
// if there is none.
func DeleteNamespace(name string) error {
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

// ListNamespaces returns the sorted names below Directory that start with
// prefix. It includes names that a killed process left without a namespace,
// which DeleteNamespace removes as well.
func ListNamespaces(prefix string) ([]string, error) {
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

// namePath is where the namespace of that name is mounted.
func namePath(name string) (string, error) {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") || len(name) > unix.NAME_MAX {
		return "", fmt.Errorf("%q is not a name for a network namespace", name)
	}
	return filepath.Join(Directory, name), nil
}

// prepareDirectory makes dir as iproute2 makes it: a shared mount, so that
// namespaces mounted and unmounted in it are so in other mount namespaces too.
func prepareDirectory(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	lock, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", dir, err)
	}
	share := func() error { return unix.Mount("", dir, "none", unix.MS_SHARED|unix.MS_REC, "") }
	err = share()
	if errors.Is(err, unix.EINVAL) { // not a mount point yet
		if err := unix.Mount(dir, dir, "none", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("bind mount %s: %w", dir, err)
		}
		err = share()
	}
	if err != nil {
		return fmt.Errorf("make %s a shared mount: %w", dir, err)
	}
	return nil
}
