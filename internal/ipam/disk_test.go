// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/testkit"
)

// smallDisk mounts a tmpfs, and returns a store on it.
func smallDisk(t *testing.T, options string) *Store {
	t.Helper()
	testkit.RequireRoot(t)
	dir := t.TempDir()
	if err := unix.Mount("ipam-test", dir, "tmpfs", 0, options); err != nil {
		t.Fatalf("mount a small file system: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return openAt(t, dir+"/net")
}

// TestFullDisk fills a disk by leases, by its space and by its inodes: an error, nothing half done, and what is there
// can be released.
func TestFullDisk(t *testing.T) {
	for _, options := range []string{"size=32k,nr_inodes=1000", "size=1m,nr_inodes=14"} {
		s := smallDisk(t, options)
		var held []Owner
		for before := ""; ; before = files(t, s) {
			o := pod("p" + string(rune('a'+len(held))))
			_, err := s.Reserve(o, dual, nil)
			if err == nil && len(held) < 20 {
				held = append(held, o)
				continue
			}
			if !errors.Is(err, unix.ENOSPC) || strings.Contains(err.Error(), "\n") || len(held) == 0 {
				t.Errorf("%s: %d owners, %v", options, len(held), err)
			}
			want(t, "files after the error", files(t, s), before)
			break
		}
		for _, o := range held {
			release(t, s, o)
		}
		want(t, "files at last", files(t, s), "")
	}
}

func TestReadOnlyDisk(t *testing.T) {
	s := smallDisk(t, "size=1m")
	reserve(t, s, pod("a"), dual)
	testkit.Succeed(t, unix.Mount("", s.path(".."), "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	_, reserved := s.Reserve(pod("b"), dual, nil)
	_, elsewhere := openAt(t, s.dir+"2").Reserve(pod("b"), dual, nil)
	for _, err := range []error{reserved, elsewhere, s.Release(pod("a"))} {
		if !errors.Is(err, unix.EROFS) || strings.Contains(err.Error(), "\n") {
			t.Errorf("read-only disk: %v", err)
		}
	}
	want(t, "leases", leased(t, s), "10.1.0.2 fd00::2")
	release(t, s, pod("none"))
}

// TestOddFiles has files of any name and kind: they are no leases, and nothing waits for a named pipe.
func TestOddFiles(t *testing.T) {
	s := open(t)
	sets := parseSets("10.1.0.0/29 end=10.1.0.3")
	reserve(t, s, pod("a"), sets)
	for _, err := range []error{
		os.Mkdir(s.path("10.1.0.9"), 0o700), os.Symlink("/etc/passwd", s.path("x@eth0")), unix.Mkfifo(s.path("y@eth0"), 0o600),
		unix.Mkfifo(s.path("10.1.0.3@y@eth0"), 0o600), os.WriteFile(s.path("fd00:0::1@a@eth0"), nil, 0o600),
	} {
		testkit.Succeed(t, err)
	}
	want(t, "leases", leased(t, s), "10.1.0.2")
	var full *FullError
	if _, err := s.Reserve(pod("c"), sets, nil); !errors.As(err, &full) {
		t.Errorf("a name is taken whatever has it: %v", err)
	}
	for _, id := range []string{"x", "y"} {
		release(t, s, pod(id))
	}
	want(t, "what y had", reserve(t, s, pod("c"), sets), "10.1.0.3")
}

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
