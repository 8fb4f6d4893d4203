// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Directory is where named network namespaces are bind-mounted, as iproute2
// does it.
const Directory = "/run/netns"

// Namespace is a network namespace that is held open by a file descriptor. It
// stays alive, nameless, until Close, even if its name is deleted. Its methods
// may be called by several goroutines at once, but not after or during Close.
type Namespace struct {
	file *os.File
	path string
	// cookie is read once: it never changes.
	cookie func() (uint64, error)
}

// OpenNamespace opens the network namespace that path stands for, for example
// /var/run/netns/pod-a or /proc/PID/ns/net. It is an error if path is no network
// namespace; fs.ErrNotExist matches if there is nothing at path.
func OpenNamespace(path string) (*Namespace, error) {
	// O_NONBLOCK, so that a FIFO at path cannot hang us.
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open network namespace: %w", &os.PathError{Op: "open", Path: path, Err: err})
	}
	if err := verify(fd); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("open network namespace %q: %w", path, err)
	}
	return newNamespace(fd, path), nil
}

// CurrentNamespace opens the network namespace of the calling thread.
func CurrentNamespace() (*Namespace, error) {
	return OpenNamespace(threadPath)
}

// newNamespace takes over fd. NewFile must not hand the descriptor to the
// poller, which is why verify has it in blocking mode.
func newNamespace(fd int, path string) *Namespace {
	n := &Namespace{file: os.NewFile(uintptr(fd), path), path: path}
	n.cookie = sync.OnceValues(n.readCookie)
	return n
}

// verify reports whether fd is a network namespace, and sets it to blocking mode.
func verify(fd int) error {
	kind, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE)
	if err != nil {
		return fmt.Errorf("it is not a namespace: %w", err)
	}
	if kind != unix.CLONE_NEWNET {
		return fmt.Errorf("it is a namespace of another kind (%#x) than network", kind)
	}
	return unix.SetNonblock(fd, false)
}

// Name is the namespace's name below Directory, or its path when it was opened
// from elsewhere. It is only for people to read: the name may be gone, or may
// stand for another namespace by now.
func (n *Namespace) Name() string {
	for _, dir := range []string{Directory, "/var" + Directory} {
		if name, ok := strings.CutPrefix(filepath.Clean(n.path), dir+"/"); ok {
			return name
		}
	}
	return n.path
}

// Path is what the namespace was opened or created as. Like Name, it may be
// gone by now.
func (n *Namespace) Path() string { return n.path }

// FD is the descriptor that holds the namespace open. It belongs to n.
func (n *Namespace) FD() int { return int(n.file.Fd()) }

// Close lets go of the namespace, which ends it if nothing else holds it.
func (n *Namespace) Close() error { return n.file.Close() }

// Inode is the number that identifies the namespace among those that exist now:
// two Namespaces with equal inodes are the same.
func (n *Namespace) Inode() (uint64, error) {
	var stat unix.Stat_t
	if err := unix.Fstat(n.FD(), &stat); err != nil {
		return 0, fmt.Errorf("read inode of network namespace %q: %w", n.Name(), err)
	}
	return stat.Ino, nil
}

// Cookie is the number that identifies the namespace to eBPF programs
// (bpf_get_netns_cookie). Unlike an inode it is never used again. It needs
// Linux 5.14.
func (n *Namespace) Cookie() (uint64, error) {
	cookie, err := n.cookie()
	if err != nil {
		return 0, fmt.Errorf("read cookie of network namespace %q: %w", n.Name(), err)
	}
	return cookie, nil
}

func (n *Namespace) readCookie() (cookie uint64, err error) {
	err = n.withSocket(func(fd int) error {
		cookie, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		return err
	})
	return cookie, err
}

// withSocket calls fn with a socket inside n that is for nothing but questions.
func (n *Namespace) withSocket(fn func(fd int) error) error {
	return n.Do(func() error {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return fn(fd)
	})
}
