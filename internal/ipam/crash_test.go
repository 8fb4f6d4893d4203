// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"mustang/internal/testkit"
)

// The test binary is also the process that is killed, and one of many at work at once.
const (
	childJob  = "IPAM_TEST_JOB"  // "reserve" or "release", of pod("v"); or "churn"
	childDir  = "IPAM_TEST_DIR"  // of the store
	childStep = "IPAM_TEST_STEP" // the step before which it kills itself, from 1
)

func TestMain(m *testing.M) {
	if os.Getenv(childJob) == "" {
		os.Exit(m.Run())
	}
	if err := child(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func child() error {
	s := Open(os.Getenv(childDir))
	if left, err := strconv.Atoi(os.Getenv(childStep)); err == nil {
		s.step = func(string) error {
			if left--; left == 0 {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {}
			}
			return nil
		}
	}
	if job := os.Getenv(childJob); job != "churn" {
		return jobs[job](s)
	}
	return churn(s, os.Getenv(childStep))
}

var jobs = map[string]func(s *Store) error{
	"reserve": func(s *Store) error { _, err := take(s, pod("v"), dual, nil); return err },
	"release": func(s *Store) error { return s.Release(pod("v")) },
}

// found is a store as the job finds it: with another owner's leases and, for a release, v's leases; or with leases of
// an earlier boot.
func found(t *testing.T, job string, boot bool) *Store {
	t.Helper()
	s := open(t)
	if boot {
		now := s.Boot
		s.Boot = "earlier"
		reserve(t, s, pod("v"), dual)
		reserve(t, s, pod("old"), dual)
		s.Boot = now
		return s
	}
	reserve(t, s, pod("other"), dual)
	if job == "release" {
		reserve(t, s, pod("v"), dual)
	}
	return s
}

// TestStops stops each job before each of its steps, by an error and by a kill. The owner can start again at once,
// another loses nothing, and no address is leased twice.
func TestStops(t *testing.T) {
	injected := errors.New("injected")
	for job, do := range jobs {
		for _, boot := range []bool{false, true} {
			for _, kill := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/boot=%t/kill=%t", job, boot, kill), func(t *testing.T) {
					t.Parallel()
					for step := 1; ; step++ {
						s := found(t, job, boot)
						others := leasesOf(t, s, pod("other"))
						stopped := false
						if kill {
							stopped = killed(t, s, job, step)
						} else {
							left := step
							s.step = func(string) error {
								if left--; left == 0 {
									stopped = true
									return injected
								}
								return nil
							}
							if err := do(s); stopped && (!errors.Is(err, injected) || strings.Contains(err.Error(), "\n")) {
								t.Errorf("step %d: %v", step, err)
							}
							s.step = func(string) error { return nil }
						}
						want(t, "the other", leasesOf(t, s, pod("other")), others)
						x := reserve(t, s, pod("x"), dual)
						has := leasesOf(t, s, pod("v"))
						testkit.Check(t, !strings.Contains(has, strings.Fields(x)[0]), "step %d: v has %s, and another %s", step, has, x)
						release(t, s, pod("v"))
						reserve(t, s, pod("v"), dual)
						for _, id := range []string{"v", "x", "other"} {
							release(t, s, pod(id))
						}
						want(t, "files at last", files(t, s), "")
						if !stopped || t.Failed() {
							testkit.Check(t, step >= 3 || boot, "only %d steps", step)
							return
						}
					}
				})
			}
		}
	}
}

// killed runs a job in a process that is killed before a step, and reports whether it came to that.
func killed(t *testing.T, s *Store, job string, step int) bool {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childJob+"="+job, childDir+"="+s.dir, childStep+"="+strconv.Itoa(step))
	output, err := cmd.CombinedOutput()
	if err == nil {
		return false
	}
	testkit.Require(t, cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL,
		"%s, to be killed at step %d: %v: %s", job, step, err, output)
	return true
}

// narrow has fewer addresses than concurrent owners.
var narrow = parseSets("10.1.0.0/24 start=10.1.0.10 end=10.1.0.29", "fd00::/64")

// churn reserves and releases as many at once do. Each address is witnessed by a directory of its name, beside the
// store's, which cannot be made twice.
func churn(s *Store, who string) error {
	var group errgroup.Group
	for i := range 25 {
		group.Go(func() error {
			for range 8 {
				if err := once(s, pod(fmt.Sprintf("p%s-%d", who, i))); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

func once(s *Store, o Owner) error {
	leases, err := take(s, o, narrow, nil)
	if full := (*FullError)(nil); errors.As(err, &full) {
		return nil
	}
	for _, l := range leases {
		if err := os.Mkdir(filepath.Join(s.dir+".held", l.Address.String()), 0o700); err != nil {
			return fmt.Errorf("given out twice: %w", err)
		}
	}
	for _, l := range leases {
		err = errors.Join(err, os.Remove(filepath.Join(s.dir+".held", l.Address.String())))
	}
	return errors.Join(err, s.Release(o))
}

// TestProcesses has processes with many goroutines each at one store.
func TestProcesses(t *testing.T) {
	s := open(t)
	testkit.Succeed(t, os.Mkdir(s.dir+".held", 0o700))
	var group errgroup.Group
	for i := range 4 {
		group.Go(func() error {
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), childJob+"=churn", childDir+"="+s.dir, fmt.Sprintf("%s=p%d", childStep, i))
			if output, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("%w: %s", err, output)
			}
			return nil
		})
	}
	testkit.Succeed(t, group.Wait())
	want(t, "files at last", files(t, s), "")
}

func smallDisk(t *testing.T, options string) *Store {
	t.Helper()
	testkit.RequireRoot(t)
	dir := t.TempDir()
	err := unix.Mount("ipam-test", dir, "tmpfs", 0, options)
	testkit.Require(t, err == nil, "mount a small file system: %v", err)
	t.Cleanup(func() {
		err := unix.Unmount(dir, unix.MNT_DETACH)
		testkit.Check(t, err == nil, "unmount %s: %v", dir, err)
	})
	return openAt(t, dir+"/net")
}

// TestFullDisk fills the space and the inodes of a disk with leases: ADD fails, leaves nothing half done, and leases
// can be released.
func TestFullDisk(t *testing.T) {
	for _, options := range []string{"size=32k,nr_inodes=1000", "size=1m,nr_inodes=14"} {
		s := smallDisk(t, options)
		var held []Owner
		for before := ""; ; before = files(t, s) {
			o := pod("p" + string(rune('a'+len(held))))
			_, err := take(s, o, dual, nil)
			if err == nil && len(held) < 20 {
				held = append(held, o)
				continue
			}
			testkit.Check(t, errors.Is(err, unix.ENOSPC) && !strings.Contains(err.Error(), "\n") && len(held) != 0,
				"%s: %d owners, %v", options, len(held), err)
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
	_, reserved := take(s, pod("b"), dual, nil)
	_, elsewhere := take(openAt(t, s.dir+"2"), pod("b"), dual, nil)
	for _, err := range []error{reserved, elsewhere, s.Release(pod("a"))} {
		testkit.Check(t, errors.Is(err, unix.EROFS) && !strings.Contains(err.Error(), "\n"), "read-only disk: %v", err)
	}
	want(t, "leases", leased(t, s), "10.1.0.2 fd00::2")
	release(t, s, pod("none"))
}

// TestOddFiles has files of any name and kind: they do not count as leases, and a named pipe does not block.
func TestOddFiles(t *testing.T) {
	s := open(t)
	sets := parseSets("10.1.0.0/29 end=10.1.0.3")
	reserve(t, s, pod("a"), sets)
	for _, err := range []error{
		os.Mkdir(s.path("10.1.0.9"), 0o700), os.Symlink("/etc/passwd", s.path("x@eth0")),
		unix.Mkfifo(s.path("y@eth0"), 0o600),
		unix.Mkfifo(s.path("10.1.0.3@y@eth0"), 0o600), os.WriteFile(s.path("fd00:0::1@a@eth0"), nil, 0o600),
	} {
		testkit.Succeed(t, err)
	}
	want(t, "leases", leased(t, s), "10.1.0.2")
	var full *FullError
	_, err := take(s, pod("c"), sets, nil)
	testkit.Check(t, errors.As(err, &full), "a name is taken whatever has it: %v", err)
	for _, id := range []string{"x", "y"} {
		release(t, s, pod(id))
	}
	want(t, "what y had", reserve(t, s, pod("c"), sets), "10.1.0.3")
}

// TestLockedByAnother has another process keep the lock of the store: calls wait for it, and no longer than its
// timeout.
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
		"Reserve": func() error { _, err := take(s, pod("b"), sets, nil); return err },
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
