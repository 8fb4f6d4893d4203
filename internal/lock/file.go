// SPDX-License-Identifier: Apache-2.0

// Package lock locks files and directories against other processes (flock(2)) for a bounded time. The kernel frees a lock
// when all descriptors of the open file are closed, so that a process that ends has none.
package lock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Timeout is the longest wait without another bound: the process that has a lock may be stopped.
const Timeout = 30 * time.Second

const (
	// pollInterval is the time between two tries where a wait is not queued.
	pollInterval = 10 * time.Millisecond
	// noticeDelay is how long a wait lasts before its notice.
	noticeDelay = time.Second
)

// abandoned counts the waits in the kernel's queue that were given up. Each keeps a thread until the lock is free, so no
// other wait enters the queue meanwhile.
var abandoned atomic.Int32

// File waits for the lock of an open file, for at most timeout. how is unix.LOCK_SH or unix.LOCK_EX. The error names the file.
func File(file *os.File, how int, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	err := acquire(ctx, file, how, func() {})
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("another process has had it for %v", timeout)
	}
	if err != nil {
		return fmt.Errorf("lock %s: %w", file.Name(), err)
	}
	return nil
}

// Unlock frees the lock of an open file. Closing the file does as well.
func Unlock(file *os.File) error { return flock(int(file.Fd()), unix.LOCK_UN) }

// acquire waits for the lock of an open file until ctx ends, in the kernel's queue, which is fair. It calls notice once if
// that takes long.
func acquire(ctx context.Context, file *os.File, how int, notice func()) error {
	if err := flock(int(file.Fd()), how|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	// The caller may close the file meanwhile. A duplicate has the same lock.
	fd, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	queued := abandoned.Load() == 0
	locked := make(chan error, 1)
	go func() {
		defer unix.Close(fd)
		if queued {
			locked <- flock(fd, how)
		} else {
			locked <- poll(ctx, fd, how)
		}
	}()
	timer := time.NewTimer(noticeDelay)
	defer timer.Stop()
	for {
		select {
		case err := <-locked:
			return err
		case <-timer.C:
			notice()
		case <-ctx.Done():
			if queued {
				abandoned.Add(1)
				go func() {
					<-locked
					abandoned.Add(-1)
				}()
			}
			return ctx.Err()
		}
	}
}

// poll waits without the queue.
func poll(ctx context.Context, fd, how int) error {
	for ctx.Err() == nil {
		if err := flock(fd, how|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
		time.Sleep(pollInterval)
	}
	return ctx.Err()
}

func flock(fd, how int) error {
	for {
		if err := unix.Flock(fd, how); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
