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

	"golang.org/x/sync/errgroup"

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
	s, err := Open(os.Getenv(childDir))
	if err != nil {
		return err
	}
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
	"reserve": func(s *Store) error { _, err := s.Reserve(pod("v"), dual, nil); return err },
	"release": func(s *Store) error { return s.Release(pod("v")) },
}

// found is a store as the job finds it: with the leases of another and, to be released, v's; or those of an earlier boot.
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

// TestStops stops each job before each of its steps, by an error and by a kill. The owner can start again at once, another
// loses nothing, and no address is leased twice.
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
						if has := leasesOf(t, s, pod("v")); strings.Contains(has, strings.Fields(x)[0]) {
							t.Errorf("step %d: v has %s, and another %s", step, has, x)
						}
						release(t, s, pod("v"))
						reserve(t, s, pod("v"), dual)
						for _, id := range []string{"v", "x", "other"} {
							release(t, s, pod(id))
						}
						want(t, "files at last", files(t, s), "")
						if !stopped || t.Failed() {
							if step < 3 && !boot {
								t.Errorf("only %d steps", step)
							}
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
	if cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("%s, to be killed at step %d: %v: %s", job, step, err, output)
	}
	return true
}

// narrow has fewer addresses than there are at once who want one.
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
	leases, err := s.Reserve(o, narrow, nil)
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
