// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// mounts returns the directories of the host that a guest mounts: the root, the shared directory, and the mount
// points of other file systems with needed files.
func (o Options) mounts() ([]mount, error) {
	if o.Bare {
		return nil, nil
	}
	out := []mount{{Tag: "root", Path: "/"}}
	needed := []string{o.Dir, o.Kernel.Modules}
	if path, err := exec.LookPath(o.Command[0]); err == nil && filepath.IsAbs(path) {
		needed = append(needed, filepath.Dir(path))
	}
	listed := map[string]bool{"/": true}
	for _, path := range needed {
		point, err := mountPoint(path)
		if err != nil {
			return nil, err
		}
		// the guest has its own
		top, _, _ := strings.Cut(strings.TrimPrefix(point, "/"), "/")
		if listed[point] || top == "proc" || top == "sys" || top == "dev" || top == "run" {
			continue
		}
		listed[point] = true
		out = append(out, mount{Tag: fmt.Sprintf("below%d", len(out)), Path: point})
	}
	if o.Share != "" {
		share, err := filepath.EvalSymlinks(o.Share)
		if err != nil {
			return nil, fmt.Errorf("directory to share: %w", err)
		}
		out = append(out, mount{Tag: "share", Path: share, Writable: true})
	}
	return out, nil
}

func mountPoint(path string) (string, error) {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", fmt.Errorf("find the file system of a path: %w", err)
	}
	for path != "/" {
		var stat unix.Statx_t
		if err := unix.Statx(unix.AT_FDCWD, path, 0, 0, &stat); err != nil {
			return "", fmt.Errorf("find the file system of %s: %w", path, err)
		}
		if stat.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0 {
			return path, nil
		}
		path = filepath.Dir(path)
	}
	return path, nil
}

func (m *machine) serve(dir mount) (client *os.File, err error) {
	path, err := findTool(virtiofsd)
	if err != nil {
		return nil, err
	}
	p := exec.CommandContext(m.alive, path)
	defer closeFiles(p)
	tree, err := openTree(dir)
	if err != nil {
		return nil, err
	}
	// The daemon's mount namespace would keep all mounts busy; the tree keeps one.
	source := "/proc/self/fd/" + pass(p, tree) + "/."
	listener, client, err := connectedListener()
	if err != nil {
		return nil, fmt.Errorf("serve %s to a guest: %w", dir.Path, err)
	}
	cache := "always" // the guest caches the host's root without looking for changes
	if dir.Writable {
		cache = "auto"
	}
	p.Args = append(p.Args, "--fd="+pass(p, listener), "-o", "source="+source+",cache="+cache+
		",sandbox=chroot,xattr,log_level=err")
	if err := m.run(p); err != nil {
		_ = client.Close()
		return nil, err
	}
	return client, nil
}

// openTree opens a private mount of the directory without the other file systems in it, read-only if it is not shared.
func openTree(m mount) (*os.File, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, m.Path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("clone the mount of %s: %w", m.Path, err)
	}
	if !m.Writable {
		attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
		if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
			return nil, errors.Join(fmt.Errorf("make a clone of the mount of %s read-only: %w", m.Path, err), unix.Close(fd))
		}
	}
	return os.NewFile(uintptr(fd), m.Path), nil
}

func connectedListener() (listener, client *os.File, err error) {
	var fds [2]int
	for i := range fds {
		if fds[i], err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return nil, nil, err
		}
	}
	listener, client = os.NewFile(uintptr(fds[0]), "listener"), os.NewFile(uintptr(fds[1]), "client")
	err = unix.Bind(fds[0], &unix.SockaddrUnix{}) // the kernel selects a name
	if err == nil {
		err = unix.Listen(fds[0], 1)
	}
	address, nameErr := unix.Getsockname(fds[0])
	if err = cmp.Or(err, nameErr); err == nil {
		err = unix.Connect(fds[1], address)
	}
	if err != nil {
		return nil, nil, errors.Join(err, listener.Close(), client.Close())
	}
	return listener, client, nil
}
