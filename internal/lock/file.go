// SPDX-License-Identifier: Apache-2.0

// Package lock locks files or directories against other processes (flock(2)) for a bounded time. The kernel frees a
// lock when all descriptors of the open file are closed, also when a process ends.
package lock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Timeout is the longest wait without another bound: the process that has a lock may be stopped.
const Timeout = 30 * time.Second

const (
	pollInterval = 10 * time.Millisecond // between attempts, where the kernel cannot queue the wait
	noticeDelay  = time.Second           // how long a wait lasts before its notice
)

// abandoned counts the waits in the kernel's queue that were given up. Each keeps a thread until the lock is free, so
// no other wait enters the queue meanwhile.
var abandoned atomic.Int32

// File waits for the lock of an open file, at most timeout. how is unix.LOCK_SH or unix.LOCK_EX. Errors name the file.
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

// acquire waits for the lock of an open file until ctx ends, in the kernel's queue, which is fair. It calls notice once
// if that takes long.
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

// Wait sets how long calls with a context wait for a lock, and who is notified.
type Wait struct {
	Limit  time.Duration // of each wait; 0 takes only a lock that is free
	Notice func(*Error)  // called once in each wait that lasts longer than a second, without an Err; nil calls nothing
}

type waitKey struct{}

// WithContext returns a context whose calls wait for locks within w's limits.
func (w Wait) WithContext(ctx context.Context) context.Context {
	return context.WithValue(ctx, waitKey{}, w)
}

// Lock is the exclusive right to a directory. The kernel frees it when the process dies.
type Lock struct {
	dir   *os.File
	check func() error
}

// Error reports that the lock was not free in time, or is waited for.
type Error struct {
	Dir    string
	PID    int // of the process that had the lock; 0: unknown
	Waited time.Duration
	Err    error // of the context; nil as long as the wait goes on
}

func (e *Error) Error() string {
	what := fmt.Sprintf("not free within %s", e.Waited.Round(time.Millisecond))
	switch {
	case e.Err == nil:
		what = "waiting"
	case errors.Is(e.Err, context.Canceled):
		what = "interrupted"
	}
	return fmt.Sprintf("lock %q: %s: %s has it", e.Dir, what, processName(e.PID))
}

// processName describes a process: "process 708 (mustang, stopped)".
func processName(pid int) string {
	if pid == 0 {
		return "another process"
	}
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)) // proc_pid_stat(5): "708 (mustang) T ..."
	_, rest, _ := strings.Cut(string(stat), "(")
	end := strings.LastIndex(rest, ") ")
	if end < 0 {
		return fmt.Sprintf("process %d", pid)
	}
	stopped := ""
	if strings.ContainsAny(rest[end+2:end+3], "Tt") {
		stopped = ", stopped"
	}
	return fmt.Sprintf("process %d (%s%s)", pid, rest[:end], stopped)
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// Take waits for a directory's lock until ctx or its Wait ends, or for 30 s without Wait and deadline. Errors: *Error;
// os.ErrNotExist if the directory is missing; the error of check, called whenever the lock was taken, also by Yield.
func Take(ctx context.Context, path string, check func() error) (*Lock, error) {
	wait, limited := ctx.Value(waitKey{}).(Wait)
	if _, bounded := ctx.Deadline(); limited || !bounded {
		if !limited {
			wait.Limit = Timeout
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, wait.Limit)
		defer cancel()
	}
	for {
		dir, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("lock: %w", err)
		}
		current := false
		if err = wait.lock(ctx, dir); err == nil {
			current, err = isCurrent(dir, path)
		}
		if err == nil && current && check != nil {
			err = check()
		}
		if err == nil && current {
			return &Lock{dir, check}, nil
		}
		_ = dir.Close()
		if err != nil {
			return nil, err
		}
	}
}

func (w Wait) lock(ctx context.Context, dir *os.File) error {
	begin := time.Now()
	state := func(err error) *Error {
		pid, _ := users(dir)
		return &Error{Dir: dir.Name(), PID: pid, Waited: time.Since(begin), Err: err}
	}
	err := acquire(ctx, dir, unix.LOCK_EX, func() {
		if w.Notice != nil {
			w.Notice(state(nil))
		}
	})
	if err != nil && errors.Is(err, ctx.Err()) {
		return state(err)
	} else if err != nil {
		return fmt.Errorf("lock %q: %w", dir.Name(), err)
	}
	return nil
}

// isCurrent reports whether a directory is at its path still: another process may have removed it, and made it anew.
func isCurrent(dir *os.File, path string) (bool, error) {
	opened, openedErr := dir.Stat()
	now, nowErr := os.Stat(path)
	if err := errors.Join(openedErr, nowErr); err != nil {
		return false, fmt.Errorf("lock: %w", err)
	}
	return os.SameFile(opened, now), nil
}

// Unlock frees the lock.
func (l *Lock) Unlock() { _ = l.dir.Close() }

// yieldTimeout bounds the wait for the processes that Yield wakes to take the lock.
const yieldTimeout = 5 * time.Millisecond

// Yield frees the lock if others wait for it, and takes it again behind the first of them. Unlocking and locking
// again at once would leave them waiting: the running process is faster than one that must be woken.
func (l *Lock) Yield(ctx context.Context) error {
	if _, waiters := users(l.dir); waiters == 0 {
		return ctx.Err()
	}
	path := l.dir.Name()
	if err := Unlock(l.dir); err != nil {
		return fmt.Errorf("unlock %q: %w", path, err)
	}
	// Between waking up and taking the lock, they are in no list of the kernel's.
	for begin := time.Now(); time.Since(begin) < yieldTimeout; time.Sleep(100 * time.Microsecond) {
		if holder, _ := users(l.dir); holder != 0 {
			break
		}
	}
	_ = l.dir.Close()
	again, err := Take(ctx, path, l.check)
	if err != nil {
		return err
	}
	l.dir = again.dir
	return nil
}

// users returns the process that has the lock, or 0, and the number of processes that wait for it. In /proc/locks
// (proc_locks(5)) the holder is "1: FLOCK ADVISORY WRITE 708 08:02:1234 0 EOF", and others are "1: -> FLOCK ...".
func users(dir *os.File) (holder, waiters int) {
	var stat unix.Stat_t
	locks, err := os.ReadFile("/proc/locks")
	if err := errors.Join(err, unix.Fstat(int(dir.Fd()), &stat)); err != nil {
		return 0, 0
	}
	place := fmt.Sprintf("%02x:%02x:%d", unix.Major(stat.Dev), unix.Minor(stat.Dev), stat.Ino)
	for line := range strings.Lines(string(locks)) {
		_, entry, _ := strings.Cut(line, ":")
		entry, waits := strings.CutPrefix(strings.TrimSpace(entry), "->")
		fields := strings.Fields(entry)
		switch {
		case len(fields) < 5 || fields[0] != "FLOCK" || fields[4] != place:
		case waits:
			waiters++
		default:
			holder, _ = strconv.Atoi(fields[3])
		}
	}
	return holder, waiters
}
