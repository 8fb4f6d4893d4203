// SPDX-License-Identifier: Apache-2.0

// Package flock locks files and directories against other processes (flock(2)) for a bounded wait. The kernel frees a lock
// when all descriptors of the open file are closed, so that a process that ends has none.
package flock

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Timeout is the longest wait that the CNI plugin and its stores grant: the process that has a lock may be stopped.
const Timeout = 30 * time.Second

// pollInterval is the time between two tries where a wait is not queued.
const pollInterval = 10 * time.Millisecond

// abandoned counts the waits in the kernel's queue that were given up. They go on until the lock is free, and each keeps a thread: so
// no others begin meanwhile.
var abandoned atomic.Int32

// Lock waits for the lock of an open file, for at most timeout. how is unix.LOCK_SH for a lock that is shared, or unix.LOCK_EX.
// The wait is in the kernel's queue, which is fair. The error names the file.
func Lock(file *os.File, how int, timeout time.Duration) error {
	err := flock(int(file.Fd()), how|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = wait(file, how, timeout)
	}
	if err != nil {
		return fmt.Errorf("lock %s: %w", file.Name(), err)
	}
	return nil
}

// Unlock frees the lock of an open file. Closing the file does as well.
func Unlock(file *os.File) error { return flock(int(file.Fd()), unix.LOCK_UN) }

func wait(file *os.File, how int, timeout time.Duration) error {
	if abandoned.Load() > 0 {
		return poll(file, how, timeout)
	}
	// The caller may close the file meanwhile. A duplicate has the same lock.
	fd, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	locked := make(chan error, 1)
	go func() {
		err := flock(fd, how)
		_ = unix.Close(fd)
		locked <- err
	}()
	select {
	case err := <-locked:
		return err
	case <-time.After(timeout):
		abandoned.Add(1)
		go func() {
			<-locked
			abandoned.Add(-1)
		}()
		return errHeld(timeout)
	}
}

// poll waits without the queue.
func poll(file *os.File, how int, timeout time.Duration) error {
	for end := time.Now().Add(timeout); ; time.Sleep(pollInterval) {
		if err := flock(int(file.Fd()), how|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
		if time.Now().After(end) {
			return errHeld(timeout)
		}
	}
}

func errHeld(timeout time.Duration) error {
	return fmt.Errorf("another process has had it for %v", timeout)
}

func flock(fd, how int) error {
	for {
		if err := unix.Flock(fd, how); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
