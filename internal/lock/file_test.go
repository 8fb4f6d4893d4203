// SPDX-License-Identifier: Apache-2.0

package lock

import (
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

// TestManyWaitsGivenUp has a process that never frees its lock: of all the waits that are given up, one stays in the kernel's
// queue, and ends with the lock.
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
