// SPDX-License-Identifier: Apache-2.0

package lock

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// opened returns a new open file description of path, as another process has.
func opened(t *testing.T, path string) *os.File {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	return file
}

// TestLockOfAnother has others keep the lock for a while, and then free it.
func TestLockOfAnother(t *testing.T) {
	dir := t.TempDir()
	holder := opened(t, dir)
	if err := File(holder, unix.LOCK_SH, 0); err != nil {
		t.Fatal(err)
	}
	sharer := opened(t, dir)
	if err := File(sharer, unix.LOCK_SH, 0); err != nil {
		t.Errorf("a second share: %v", err)
	}
	locked := make(chan error, 1)
	waiter := opened(t, dir)
	go func() { locked <- File(waiter, unix.LOCK_EX, time.Minute) }()
	select {
	case err := <-locked:
		t.Fatalf("an exclusive lock beside shares: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	_ = Unlock(holder)
	_ = sharer.Close()
	if err := <-locked; err != nil {
		t.Error(err)
	}
}

// TestManyWaitsGivenUp has a process that never frees its lock: of all the waits that are given up, one stays in the
// kernel's queue, and ends with the lock.
func TestManyWaitsGivenUp(t *testing.T) {
	path := t.TempDir()
	holder := opened(t, path)
	if err := File(holder, unix.LOCK_EX, 0); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		file := opened(t, path)
		if err := File(file, unix.LOCK_EX, 5*time.Millisecond); err == nil || !strings.Contains(err.Error(), path) {
			t.Fatalf("a lock that another has: %v", err)
		}
		_ = file.Close()
	}
	if n := abandoned.Load(); n != 1 {
		t.Errorf("%d waits are in the queue still, and each keeps a thread", n)
	}
	locked := make(chan error, 1)
	waiter := opened(t, path)
	go func() { locked <- File(waiter, unix.LOCK_EX, time.Minute) }()
	if err := Unlock(holder); err != nil {
		t.Fatal(err)
	}
	if err := <-locked; err != nil {
		t.Errorf("the lock once it is free: %v", err)
	}
	_ = waiter.Close()
	for begun := time.Now(); abandoned.Load() != 0; time.Sleep(time.Millisecond) {
		if time.Since(begun) > 10*time.Second {
			t.Fatal("the wait that was given up does not end")
		}
	}
}

// TestLockEndsWithContext waits for a lock that another file of this process has.
func TestLockEndsWithContext(t *testing.T) {
	root := t.TempDir()
	held, err := Take(t.Context(), root, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err = Take(ctx, root, nil)
	var locked *Error
	if !errors.As(err, &locked) || !errors.Is(err, context.DeadlineExceeded) || locked.PID != os.Getpid() ||
		!strings.Contains(err.Error(), root) {
		t.Errorf("error %v, want that process %d has the lock", err, os.Getpid())
	}
	held.Unlock()
	// The wait that was given up does not keep the lock.
	again, err := Take(t.Context(), root, nil)
	if err != nil {
		t.Fatal(err)
	}
	again.Unlock()
	if _, err := Take(t.Context(), root+"/none", nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no root: error %v", err)
	}
}

// TestWait bounds a wait by its context's Wait, whose Notice gets the holder.
func TestWait(t *testing.T) {
	root := t.TempDir()
	held, err := Take(t.Context(), root, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Unlock()
	var noticed []*Error
	wait := Wait{Notice: func(e *Error) { noticed = append(noticed, e) }}
	for _, wait.Limit = range []time.Duration{0, 2 * noticeDelay} {
		_, err := Take(wait.WithContext(t.Context()), root, nil)
		var locked *Error
		if !errors.As(err, &locked) || !errors.Is(err, context.DeadlineExceeded) || locked.Waited < wait.Limit {
			t.Errorf("limit %s: error %v", wait.Limit, err)
		}
	}
	if len(noticed) != 1 || noticed[0].PID != os.Getpid() || noticed[0].Err != nil {
		t.Errorf("noticed %v, want process %d once", noticed, os.Getpid())
	}
}

// TestYieldLetsOthersIn frees the lock for one that waits, and takes it again. The other may be slow to wake up.
func TestYieldLetsOthersIn(t *testing.T) {
	// Yield sees only waits in the kernel's queue. No wait enters it until the abandoned waits of earlier tests are over.
	for abandoned.Load() != 0 {
		time.Sleep(time.Millisecond)
	}
	root := t.TempDir()
	held, err := Take(t.Context(), root, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Unlock()
	had := make(chan error, 1)
	go func() {
		other, err := Take(t.Context(), root, nil)
		if err == nil {
			other.Unlock()
		}
		had <- err
	}()
	for len(had) == 0 {
		if err := held.Yield(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-had; err != nil {
		t.Error(err)
	}
	// Not by /proc/locks: its reader misses entries while other processes lock and unlock.
	if third, err := Take(Wait{}.WithContext(t.Context()), root, nil); err == nil {
		third.Unlock()
		t.Error("the lock is free after Yield")
	}
}
