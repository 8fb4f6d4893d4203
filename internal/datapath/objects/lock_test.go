// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"
)

// TestLockEndsWithContext waits for a lock that another file of this process has.
func TestLockEndsWithContext(t *testing.T) {
	root := t.TempDir()
	held, err := lock(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err = lock(ctx, root)
	var locked *LockError
	if !errors.As(err, &locked) || !errors.Is(err, context.DeadlineExceeded) || locked.PID != os.Getpid() ||
		!strings.Contains(err.Error(), root) {
		t.Errorf("error %v, want that process %d has the lock", err, os.Getpid())
	}
	held.Unlock()
	// The wait that was given up does not keep the lock.
	again, err := lock(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	again.Unlock()
	if _, err := lock(t.Context(), root+"/none"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no root: error %v", err)
	}
}

// TestYieldLetsOthersIn frees the lock for one that waits, and takes it again. The other may be slow to wake up.
func TestYieldLetsOthersIn(t *testing.T) {
	root := t.TempDir()
	held, err := lock(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Unlock()
	had := make(chan error, 1)
	go func() {
		other, err := lock(t.Context(), root)
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
	if pid := holder(held.dir); pid != os.Getpid() {
		t.Errorf("process %d has the lock after Yield", pid)
	}
}
