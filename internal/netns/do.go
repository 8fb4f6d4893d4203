// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"fmt"
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"
)

// threadPath is the network namespace of the calling thread. /proc/self is that of the process's first thread.
const threadPath = "/proc/thread-self/ns/net"

// Do runs fn inside n and returns fn's error. Sockets that fn opens, files below /proc/sys/net and processes that fn
// starts belong to n. Goroutines that fn starts do not.
//
// Do locks the calling goroutine to its thread and restores the thread's namespace afterwards. If the kernel refuses that,
// Do panics and the thread ends, so that nothing else runs inside n. Calls nest.
func (n *Namespace) Do(fn func() error) error {
	return onThread(n.enter, restore, fn)
}

// enter moves the calling thread into n.
func (n *Namespace) enter() error {
	if err := unix.Setns(n.FD(), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace %q: %w", n.Name(), err)
	}
	return nil
}

// restore moves the calling thread into the namespace of the descriptor origin.
func restore(origin int) error {
	return unix.Setns(origin, unix.CLONE_NEWNET)
}

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

// Start starts cmd inside n. The process keeps the caller's mount namespace and cgroup, so its /sys is not that of n.
//
// cmd.SysProcAttr.Pdeathsig must not be set: the kernel sends that signal when the starting thread ends, which may happen at
// any time.
func (n *Namespace) Start(cmd *exec.Cmd) error {
	if cmd.SysProcAttr != nil && cmd.SysProcAttr.Pdeathsig != 0 {
		return fmt.Errorf("start %s in network namespace %q: Pdeathsig must not be set", cmd.Path, n.Name())
	}
	if err := n.Do(cmd.Start); err != nil {
		return fmt.Errorf("start %s in network namespace %q: %w", cmd.Path, n.Name(), err)
	}
	return nil
}
