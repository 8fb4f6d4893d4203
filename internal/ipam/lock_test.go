// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestLockedByAnother has another process keep the lock of the store: calls wait for it, and no longer than lockTimeout.
func TestLockedByAnother(t *testing.T) {
	defer func(before time.Duration) { lockTimeout = before }(lockTimeout)
	s, sets := open(t), parseSets("10.9.0.0/24")
	reserve(t, s, pod("a"), sets)
	dir, err := os.Open(s.dir)
	if err == nil {
		err = unix.Flock(int(dir.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	lockTimeout = 200 * time.Millisecond
	for name, call := range map[string]func() error{
		"Reserve": func() error { _, err := s.Reserve(pod("b"), sets, nil); return err },
		"Release": func() error { _, err := s.Release(pod("a")); return err },
		"Get":     func() error { _, err := s.Get(pod("a")); return err },
		"Leases":  func() error { _, err := s.Leases(); return err },
		"Keep":    func() error { _, err := s.Keep(anyOwner); return err },
	} {
		ended := make(chan error, 1)
		go func() { ended <- call() }()
		select {
		case err := <-ended:
			if err == nil || !strings.Contains(err.Error(), "another process has had it") {
				t.Errorf("%s without the lock: %v", name, err)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("%s waits for the lock without end", name)
		}
	}
	if n := givenUp.Load(); n != 1 {
		t.Errorf("%d waits are in the kernel's queue still, and each keeps a thread: want that of the first call", n)
	}
	lockTimeout = time.Minute
	time.AfterFunc(300*time.Millisecond, func() { _ = dir.Close() })
	if freed := release(t, s, pod("a")); freed == "" {
		t.Error("released nothing once the lock was free")
	}
	for begun := time.Now(); givenUp.Load() != 0; time.Sleep(time.Millisecond) {
		if time.Since(begun) > 10*time.Second {
			t.Fatal("the wait that was given up does not end")
		}
	}
}
