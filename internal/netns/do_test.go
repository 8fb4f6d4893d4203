// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// The tests of the runtime's threads are inside the package, since they need a restore that fails.

func requireRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		// testkit can't be imported here: it imports this package.
		if os.Getenv("MUSTANG_REQUIRE") == "all" {
			t.Fatal("needs root")
		}
		t.Skip("needs root")
	}
}

// current is the inode of the calling thread's network namespace.
func current(t *testing.T) uint64 {
	t.Helper()
	var stat unix.Stat_t
	if err := unix.Stat(threadPath, &stat); err != nil {
		t.Fatal(err)
	}
	return stat.Ino
}

func newTestNamespace(t *testing.T) (*Namespace, uint64) {
	t.Helper()
	requireRoot(t)
	ns, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ns.Close() })
	inode, err := ns.Inode()
	if err != nil {
		t.Fatal(err)
	}
	return ns, inode
}

func TestDoEntersAndComesBack(t *testing.T) {
	ns, inode := newTestNamespace(t)
	outer := current(t)
	if outer == inode {
		t.Fatal("a new namespace is the current one")
	}
	want := errors.New("from inside")
	err := ns.Do(func() error {
		if got := current(t); got != inode {
			t.Errorf("inside is %d, not %d", got, inode)
		}
		return want
	})
	if !errors.Is(err, want) {
		t.Errorf("error is %v", err)
	}
	if got := current(t); got != outer {
		t.Errorf("afterwards it is %d, not %d", got, outer)
	}
}

// TestDoNested goes from one namespace to another and back.
func TestDoNested(t *testing.T) {
	a, inodeA := newTestNamespace(t)
	b, inodeB := newTestNamespace(t)
	err := a.Do(func() error {
		err := b.Do(func() error {
			if got := current(t); got != inodeB {
				t.Errorf("inner is %d, not %d", got, inodeB)
			}
			return nil
		})
		if got := current(t); got != inodeA {
			t.Errorf("after the inner one it is %d, not %d", got, inodeA)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestDoGoroutines starts goroutines from inside, which must be outside: the
// runtime may not clone their threads from the one inside.
func TestDoGoroutines(t *testing.T) {
	ns, _ := newTestNamespace(t)
	outer := current(t)
	err := ns.Do(func() error {
		const n = 50
		seen := make(chan uint64, n)
		for range n {
			go func() {
				runtime.LockOSThread() // never unlocked, so each one takes a new thread
				seen <- current(t)
			}()
		}
		for range n {
			if got := <-seen; got != outer {
				t.Errorf("a goroutine is in %d, not %d", got, outer)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestDoEnded has the function end its goroutine, and panic: the thread is put back.
func TestDoEnded(t *testing.T) {
	ns, _ := newTestNamespace(t)
	outer := current(t)
	for name, end := range map[string]func(){"Goexit": runtime.Goexit, "panic": func() { panic("fn") }} {
		after := make(chan uint64, 1)
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			defer func() {
				_ = recover()
				after <- current(t)
			}()
			_ = ns.Do(func() error { end(); return nil })
		}()
		if got := <-after; got != outer {
			t.Errorf("after %s it is %d, not %d", name, got, outer)
		}
	}
}

func TestDoClosed(t *testing.T) {
	ns, _ := newTestNamespace(t)
	if err := ns.Close(); err != nil {
		t.Fatal(err)
	}
	if err := ns.Do(func() error { t.Error("the function ran"); return nil }); err == nil {
		t.Error("no error")
	}
}

// TestFailedRestoreKillsThread makes threads that can't be put back: the caller must
// hear of it, and none of them may run a goroutine again.
func TestFailedRestoreKillsThread(t *testing.T) {
	ns, inode := newTestNamespace(t)
	broken := func(origin int) error {
		if unix.Gettid() == os.Getpid() {
			return restore(origin) // the first thread is never killed, only put aside
		}
		return unix.EPERM
	}
	spoiled := map[int]bool{}
	for range 20 {
		said := make(chan any)
		first := false
		go func() {
			defer func() { said <- recover() }()
			_ = onThread(ns.enter, broken, func() error {
				spoiled[unix.Gettid()] = true
				first = unix.Gettid() == os.Getpid()
				return nil
			})
		}()
		if got := <-said; got == nil != first {
			t.Fatalf("panicked with %v; on the first thread: %t", got, first)
		}
	}
	const n = 100
	type place struct {
		thread int
		inode  uint64
	}
	seen := make(chan place, n)
	for range n {
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			seen <- place{unix.Gettid(), current(t)}
		}()
	}
	for range n {
		if p := <-seen; p.inode == inode {
			t.Errorf("a goroutine runs on thread %d inside the namespace (spoiled: %t)", p.thread, spoiled[p.thread])
		}
	}
}

// TestDoLeaksNothing counts descriptors and threads over many calls.
func TestDoLeaksNothing(t *testing.T) {
	ns, _ := newTestNamespace(t)
	count := func(path string) int {
		entries, err := os.ReadDir(path)
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	calls := func() {
		for range 500 {
			if err := ns.Do(func() error { return nil }); err != nil {
				t.Fatal(err)
			}
		}
	}
	calls()
	files, threads := count("/proc/self/fd"), count("/proc/self/task")
	calls()
	if got := count("/proc/self/fd"); got > files {
		t.Errorf("%d descriptors are open, %d were before", got, files)
	}
	if got := count("/proc/self/task"); got > threads+10 {
		t.Errorf("there are %d threads, %d were before", got, threads)
	}
}
