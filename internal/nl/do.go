// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"fmt"
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"
)

// threadPath is the network namespace of the thread that opens it. It is not
// /proc/self, which is that of the process's first thread.
const threadPath = "/proc/thread-self/ns/net"

// Do runs fn inside n, and returns fn's error. Sockets opened, files below
// /proc/sys/net and processes started by fn are those of n.
//
// The calling goroutine is locked to its thread meanwhile; others, also those that
// fn starts, are outside n. Afterwards the thread is put back where it came from. If
// the kernel refuses that, Do panics, and the thread is never used again: whatever
// ran on it would be inside n unknowingly. Calls nest.
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

// restore moves the calling thread back into the namespace open as origin.
func restore(origin int) error {
	return unix.Setns(origin, unix.CLONE_NEWNET)
}

// onThread calls enter and then fn on a locked thread, which leave puts back.
// It is the caller's thread: a thread of fn's own would cost more than most calls do.
func onThread(enter func() error, leave func(origin int) error, fn func() error) error {
	runtime.LockOSThread()
	origin, err := unix.Open(threadPath, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("open the thread's network namespace: %w", err)
	}
	defer func() {
		err := leave(origin)
		_ = unix.Close(origin)
		if err != nil {
			// Still locked, the thread ends with its goroutine.
			panic(fmt.Sprintf("a thread can't go back to its network namespace: %v", err))
		}
		runtime.UnlockOSThread()
	}()
	if err := enter(); err != nil {
		return err
	}
	return fn()
}

// Start starts cmd inside n. Only the network namespace is n's: the process
// keeps our mounts, so it sees our /proc and /sys and not those of n, and our
// cgroups.
//
// cmd.SysProcAttr.Pdeathsig must not be set: the kernel sends that signal when
// the thread that started the process ends, and the thread that does so here
// may end at any time.
func (n *Namespace) Start(cmd *exec.Cmd) error {
	if cmd.SysProcAttr != nil && cmd.SysProcAttr.Pdeathsig != 0 {
		return fmt.Errorf("start %s in network namespace %q: Pdeathsig is set, which would follow a thread", cmd.Path, n.Name())
	}
	if err := n.Do(cmd.Start); err != nil {
		return fmt.Errorf("start %s in network namespace %q: %w", cmd.Path, n.Name(), err)
	}
	return nil
}
