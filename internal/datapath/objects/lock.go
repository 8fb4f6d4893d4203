// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// lockTimeout bounds the wait for the lock of a caller whose context has no deadline.
const lockTimeout = 30 * time.Second

// Lock is the exclusive right to change rows, or programs and links, under a root. The kernel frees it when the process
// dies.
type Lock struct {
	dir *os.File
	// opened is what was pinned when the holder opened it; nil if it has opened nothing.
	opened *Objects
}

// LockError reports that the lock was not free in time.
type LockError struct {
	// Dir is the directory that is locked.
	Dir string
	// PID is the process that had the lock; 0 if it is unknown.
	PID int
	// Err is the error of the context.
	Err error
}

func (e *LockError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("lock %q: another process has it: %v", e.Dir, e.Err)
	}
	name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", e.PID))
	return fmt.Sprintf("lock %q: process %d (%s) has it: %v", e.Dir, e.PID, strings.TrimSpace(string(name)), e.Err)
}

// Unwrap returns the error of the context.
func (e *LockError) Unwrap() error { return e.Err }

// lock waits until no other process or goroutine has the lock of a directory, and takes it. The error is a *LockError when
// ctx ends first, or after 30 s if ctx has no deadline; it matches os.ErrNotExist if there is no directory.
func lock(ctx context.Context, path string) (*Lock, error) {
	if _, ok := ctx.Deadline(); !ok {
		bounded, cancel := context.WithTimeout(ctx, lockTimeout)
		defer cancel()
		ctx = bounded
	}
	for {
		dir, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("lock: %w", err)
		}
		if err := waitLock(ctx, dir); err != nil {
			return nil, err
		}
		// Remove may have deleted the directory while we waited, and Create may have made another.
		current, err := isCurrent(dir, path)
		if err == nil && current {
			return &Lock{dir: dir}, nil
		}
		_ = dir.Close()
		if err != nil {
			return nil, fmt.Errorf("lock: %w", err)
		}
	}
}

// waitLock locks dir, or closes it. The kernel queues those that wait; a wait that is given up goes on in the background
// until the lock is free.
func waitLock(ctx context.Context, dir *os.File) error {
	if err := flock(dir, unix.LOCK_EX|unix.LOCK_NB); err == nil {
		return nil
	} else if !errors.Is(err, unix.EWOULDBLOCK) {
		_ = dir.Close()
		return fmt.Errorf("lock %q: %w", dir.Name(), err)
	}
	locked := make(chan error, 1)
	go func() { locked <- flock(dir, unix.LOCK_EX) }()
	select {
	case err := <-locked:
		if err != nil {
			_ = dir.Close()
			return fmt.Errorf("lock %q: %w", dir.Name(), err)
		}
		return nil
	case <-ctx.Done():
		err := &LockError{Dir: dir.Name(), PID: holder(dir), Err: ctx.Err()}
		go func() {
			<-locked
			_ = dir.Close()
		}()
		return err
	}
}

func flock(dir *os.File, how int) error {
	for {
		if err := unix.Flock(int(dir.Fd()), how); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func isCurrent(dir *os.File, path string) (bool, error) {
	opened, err := dir.Stat()
	if err != nil {
		return false, err
	}
	now, err := os.Stat(path)
	if err != nil {
		return false, err
	}
	return os.SameFile(opened, now), nil
}

// Unlock frees the lock.
func (l *Lock) Unlock() { _ = l.dir.Close() }

// yieldTimeout bounds the wait for those that Yield wakes to take the lock.
const yieldTimeout = 5 * time.Millisecond

// Yield frees the lock if others wait for it, and takes it again behind the first of them. To unlock and lock again at once
// would leave them waiting: who runs is faster than who must be woken.
func (l *Lock) Yield(ctx context.Context) error {
	if waiters(l.dir) == 0 {
		return ctx.Err()
	}
	path := l.dir.Name()
	if err := flock(l.dir, unix.LOCK_UN); err != nil {
		return fmt.Errorf("unlock %q: %w", path, err)
	}
	// Between waking up and taking the lock, they are in no list of the kernel's.
	for begin := time.Now(); holder(l.dir) == 0 && time.Since(begin) < yieldTimeout; {
		time.Sleep(100 * time.Microsecond)
	}
	_ = l.dir.Close()
	again, err := lock(ctx, path)
	if err != nil {
		return err
	}
	l.dir = again.dir
	if l.opened == nil {
		return nil
	}
	return l.opened.checkPinned()
}

// holder returns the process that has the lock, or 0.
func holder(dir *os.File) (pid int) {
	eachLock(dir, func(waits bool, owner int) {
		if !waits {
			pid = owner
		}
	})
	return pid
}

// waiters returns the number of processes that wait for the lock.
func waiters(dir *os.File) (n int) {
	eachLock(dir, func(waits bool, _ int) {
		if waits {
			n++
		}
	})
	return n
}

// eachLock goes through the entries of /proc/locks (proc_locks(5)) for a directory:
// "1: FLOCK  ADVISORY  WRITE 708 08:02:1234 0 EOF", and "1: -> FLOCK ..." for those that wait.
func eachLock(dir *os.File, fn func(waits bool, pid int)) {
	var stat unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &stat); err != nil {
		return
	}
	place := fmt.Sprintf("%02x:%02x:%d", unix.Major(stat.Dev), unix.Minor(stat.Dev), stat.Ino)
	file, err := os.Open("/proc/locks")
	if err != nil {
		return
	}
	defer func() { _ = file.Close() }()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		waits := len(fields) > 1 && fields[1] == "->"
		if waits {
			fields = fields[1:]
		}
		if len(fields) < 6 || fields[1] != "FLOCK" || fields[5] != place {
			continue
		}
		if pid, err := strconv.Atoi(fields[4]); err == nil {
			fn(waits, pid)
		}
	}
}
