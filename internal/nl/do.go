// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"errors"
	"fmt"
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"
)

// threadPath is the network namespace of the thread that opens it. It is not
// /proc/self, which is that of the process's first thread.
const threadPath = "/proc/thread-self/ns/net"

// errGoexit is what Do returns if fn ended its goroutine.
var errGoexit = errors.New("the function ended its goroutine")

// Do runs fn on an OS thread that is inside n, and returns fn's error. Sockets
// opened, files below /proc/sys/net and processes started by fn are those of n.
//
// fn runs on a goroutine of its own, locked to its thread, so the caller's
// namespace never changes; goroutines that fn starts are outside n. Afterwards
// the thread is put back where it came from; if that can't be done it is
// discarded together with its goroutine. Calls nest. fn must not end its
// goroutine (testing.T's FailNow does).
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
// The thread ends with its goroutine unless leave succeeds.
func onThread(enter func() error, leave func(origin int) error, fn func() error) error {
	done := make(chan error, 1)
	go func() {
		err := errGoexit
		defer func() { done <- err }()
		runtime.LockOSThread()
		var origin int
		origin, err = unix.Open(threadPath, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			runtime.UnlockOSThread()
			err = fmt.Errorf("open the thread's network namespace: %w", err)
			return
		}
		defer func() {
			// Still locked when the goroutine ends, a thread is killed by the runtime.
			if leave(origin) == nil {
				runtime.UnlockOSThread()
			}
			_ = unix.Close(origin)
		}()
		if err = enter(); err != nil {
			return
		}
		err = errGoexit
		err = fn()
	}()
	return <-done
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
