// SPDX-License-Identifier: Apache-2.0

// Package netns opens network namespaces.
//
// No function leaves the calling goroutine in another namespace than before. Package rtnl reads and changes the devices
// of a namespace.
package netns

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Directory holds the bind mounts of named network namespaces, as with iproute2.
const Directory = "/run/netns"

// Namespace holds a network namespace open by a file descriptor. The namespace exists until Close, even if its name is
// deleted. Several goroutines may call the methods at once, but not during or after Close.
type Namespace struct {
	file   *os.File
	path   string
	cookie func() (uint64, error) // reads the cookie once: it never changes
}

// Open opens the network namespace at path, for example /var/run/netns/pod-a or /proc/PID/ns/net. The error matches
// fs.ErrNotExist if nothing is at path.
func Open(path string) (*Namespace, error) {
	// O_NONBLOCK: opening a FIFO must not block.
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

// Current opens the network namespace of the calling thread.
func Current() (*Namespace, error) { return Open(threadPath) }

// Receive makes a namespace from a descriptor, which another process may have sent, with a path for messages. On
// success it keeps the descriptor.
func Receive(fd int, path string) (*Namespace, error) {
	if err := verify(fd); err != nil {
		return nil, fmt.Errorf("descriptor of network namespace %q: %w", path, err)
	}
	return newNamespace(fd, path), nil
}

// Clone returns a second Namespace with its own descriptor.
func (n *Namespace) Clone() (*Namespace, error) {
	fd, err := unix.FcntlInt(uintptr(n.FD()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("duplicate network namespace %q: %w", n.Name(), err)
	}
	return newNamespace(fd, n.path), nil
}

// newNamespace takes ownership of fd. verify has set it to blocking mode, so NewFile keeps it from the poller.
func newNamespace(fd int, path string) *Namespace {
	n := &Namespace{file: os.NewFile(uintptr(fd), path), path: path}
	n.cookie = sync.OnceValues(func() (cookie uint64, err error) {
		err = n.WithSocket(func(fd int) error {
			cookie, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
			return err
		})
		return cookie, err
	})
	return n
}

// verify checks that fd is a network namespace, and sets it to blocking mode.
func verify(fd int) error {
	kind, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE)
	if err != nil {
		return fmt.Errorf("not a namespace: %w", err)
	}
	if kind != unix.CLONE_NEWNET {
		return fmt.Errorf("not a network namespace (kind %#x)", kind)
	}
	return unix.SetNonblock(fd, false)
}

// Name returns the namespace's name below Directory, "this one" if Current opened it, or else its path. Use it in
// messages only: the name may be deleted or refer to another namespace now.
func (n *Namespace) Name() string {
	if n.path == threadPath {
		return "this one" // the path would lead each reader elsewhere
	}
	for _, dir := range []string{Directory, "/var" + Directory} {
		if name, ok := strings.CutPrefix(filepath.Clean(n.path), dir+"/"); ok {
			return name
		}
	}
	return n.path
}

// Path returns the path that the namespace was opened or created with. Like Name, it may be stale.
func (n *Namespace) Path() string { return n.path }

// FD returns the file descriptor of the namespace. Close closes it.
func (n *Namespace) FD() int { return int(n.file.Fd()) }

// Close closes the file descriptor. The kernel deletes a namespace without another reference.
func (n *Namespace) Close() error { return n.file.Close() }

// Inode returns the inode number, which identifies the namespace among existing ones.
func (n *Namespace) Inode() (uint64, error) {
	var stat unix.Stat_t
	if err := unix.Fstat(n.FD(), &stat); err != nil {
		return 0, fmt.Errorf("read inode of network namespace %q: %w", n.Name(), err)
	}
	return stat.Ino, nil
}

// Cookie returns the number of the namespace in eBPF programs (bpf_get_netns_cookie). The kernel never reuses it. It
// needs Linux 5.14.
func (n *Namespace) Cookie() (uint64, error) {
	cookie, err := n.cookie()
	if err != nil {
		return 0, fmt.Errorf("read cookie of network namespace %q: %w", n.Name(), err)
	}
	return cookie, nil
}

// WithSocket calls fn with a socket inside n, for ioctl and getsockopt calls.
func (n *Namespace) WithSocket(fn func(fd int) error) error {
	return n.Do(func() error {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return fn(fd)
	})
}

// threadPath is the network namespace of the calling thread. /proc/self belongs to the process's first thread.
const threadPath = "/proc/thread-self/ns/net"

// Do runs fn inside n and returns fn's error. Sockets that fn opens, files below /proc/sys/net and processes that fn
// starts belong to n. Goroutines that fn starts do not.
//
// Do locks the calling goroutine to its thread and restores the thread's namespace afterwards. If the kernel refuses
// that, Do panics and the thread ends, so that nothing else runs inside n. Calls nest.
func (n *Namespace) Do(fn func() error) error { return onThread(n.enter, restore, fn) }

// Get returns what fn returns inside n, as [Namespace.Do] runs it.
func Get[T any](n *Namespace, fn func() (T, error)) (value T, err error) {
	err = n.Do(func() (err error) {
		value, err = fn()
		return err
	})
	return value, err
}

func (n *Namespace) enter() error {
	if err := unix.Setns(n.FD(), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace %q: %w", n.Name(), err)
	}
	return nil
}

func restore(origin int) error { return unix.Setns(origin, unix.CLONE_NEWNET) }

// onThread locks the calling goroutine to its thread, calls enter and fn, and restores the namespace by leave. If enter
// fails, the thread has not moved. A new thread would cost more than most calls do.
func onThread(enter func() error, leave func(origin int) error, fn func() error) error {
	runtime.LockOSThread()
	origin, err := unix.Open(threadPath, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("open the thread's network namespace: %w", err)
	}
	if err := enter(); err != nil {
		_ = unix.Close(origin)
		runtime.UnlockOSThread()
		return err
	}
	defer func() {
		err := leave(origin)
		_ = unix.Close(origin)
		if err != nil {
			// Still locked, the thread ends with its goroutine.
			panic(fmt.Sprintf("restore the thread's network namespace: %v", err))
		}
		runtime.UnlockOSThread()
	}()
	return fn()
}

// Start starts cmd inside n. The process keeps the caller's mount namespace and cgroup, so its /sys is not n's.
//
// cmd.SysProcAttr.Pdeathsig must not be set: the kernel sends it when the starting thread ends, possibly at any time.
func (n *Namespace) Start(cmd *exec.Cmd) error {
	if cmd.SysProcAttr != nil && cmd.SysProcAttr.Pdeathsig != 0 {
		return fmt.Errorf("start %s in network namespace %q: Pdeathsig must not be set", cmd.Path, n.Name())
	}
	if err := n.Do(cmd.Start); err != nil {
		return fmt.Errorf("start %s in network namespace %q: %w", cmd.Path, n.Name(), err)
	}
	return nil
}

// Processes returns the IDs of the other processes that match, by their IDs and the inodes of their namespaces. Zombies
// and processes that have just ended lack a namespace.
func Processes(match func(pid int, inode uint64) bool) (pids []int, err error) {
	entries, err := os.ReadDir("/proc")
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		var stat unix.Stat_t
		if unix.Stat(filepath.Join("/proc", entry.Name(), "ns/net"), &stat) == nil && match(pid, stat.Ino) {
			pids = append(pids, pid)
		}
	}
	return pids, err
}
