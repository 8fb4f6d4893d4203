// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/testkit"
)

// TestLockedByAnother has another process keep the lock of the store: calls wait for it, and no longer than its timeout.
func TestLockedByAnother(t *testing.T) {
	s, sets := open(t), parseSets("10.9.0.0/24")
	reserve(t, s, pod("a"), sets)
	dir, err := os.Open(s.dir)
	if err == nil {
		err = unix.Flock(int(dir.Fd()), unix.LOCK_EX)
	}
	testkit.Succeed(t, err)
	defer dir.Close()
	s.timeout = 200 * time.Millisecond
	for name, call := range map[string]func() error{
		"Reserve": func() error { _, err := s.Reserve(pod("b"), sets, nil); return err },
		"Release": func() error { return s.Release(pod("a")) },
		"Get":     func() error { _, err := s.Get(pod("a")); return err },
		"Leases":  func() error { _, err := s.Leases(); return err },
	} {
		ended := make(chan error, 1)
		go func() { ended <- call() }()
		select {
		case err := <-ended:
			testkit.Fails(t, err, "another process has had it")
		case <-time.After(10 * time.Second):
			t.Fatalf("%s waits for the lock without end", name)
		}
	}
	s.timeout = time.Minute
	time.AfterFunc(300*time.Millisecond, func() { _ = dir.Close() })
	release(t, s, pod("a"))
	want(t, "leases once the lock was free", leased(t, s), "")
}
