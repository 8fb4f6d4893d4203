// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// The test binary is also the process that is killed, and one of many at work at once.
const (
	childJob  = "IPAM_TEST_JOB"  // "reserve", "release" or "keep", of pod("v"); or "churn"
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
	switch os.Getenv(childJob) {
	case "reserve":
		_, err = s.Reserve(pod("v"), dual, nil)
	case "release":
		_, err = s.Release(pod("v"))
	case "keep":
		_, err = s.Keep(func(o Owner) bool { return o != pod("v") })
	case "churn":
		err = churn(s, os.Getenv(childStep))
	}
	return err
}

// killed runs the job in a process that is killed before the given step, and tells whether it came to that.
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

// setups are what v's process finds: its leases where it is to free them, another's, and where there are any, those of an
// earlier boot.
func setups(t *testing.T, job string) map[string]*Store {
	t.Helper()
	stores := map[string]*Store{"fresh": open(t), "after a boot": open(t)}
	for name, s := range stores {
		if boot := s.Boot; name != "fresh" {
			s.Boot = "earlier"
			for _, id := range []string{"v", "old", "older"} {
				reserve(t, s, pod(id), dual)
			}
			s.Boot = boot
			if job == "reserve" { // which is then the first of this boot
				continue
			}
		}
		reserve(t, s, pod("other"), dual)
		if job != "reserve" {
			reserve(t, s, pod("v"), dual)
		}
	}
	return stores
}

// recoveries are what may come after the crash. Each ends with nothing of v's left.
var recoveries = map[string]func(t *testing.T, s *Store){
	"release": func(t *testing.T, s *Store) {
		release(t, s, pod("v"))
	},
	"keep": func(t *testing.T, s *Store) {
		if _, err := s.Keep(func(o Owner) bool { return o != pod("v") }); err != nil {
			t.Error(err)
		}
	},
	"the same again": func(t *testing.T, s *Store) {
		if _, err := s.Reserve(pod("v"), dual, nil); err != nil && !errors.Is(err, fs.ErrExist) {
			t.Error(err)
		}
		if has, err := s.Get(pod("v")); err != nil || len(has) != 2 {
			t.Errorf("v has %v, %v", has, err)
		}
		release(t, s, pod("v"))
	},
	"others first": func(t *testing.T, s *Store) {
		// They take the addresses that v was to have, where it has no hold of them yet.
		if err := os.Remove(s.path(cursorFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
		got := reserve(t, s, pod("x"), dual) + " " + reserve(t, s, pod("y"), dual)
		release(t, s, pod("v"))
		for _, addr := range strings.Fields(got) {
			if all := " " + leased(t, s) + " "; strings.Count(all, " "+addr+" ") != 1 {
				t.Errorf("of %s, which others got, there is now %s", got, all)
			}
		}
		release(t, s, pod("x"))
		release(t, s, pod("y"))
	},
}

// TestKill kills a real process before each step of what it does, and has another come after it.
func TestKill(t *testing.T) {
	for _, job := range []string{"reserve", "release", "keep"} {
		for recovery, recover := range recoveries {
			for setup := range setups(t, job) {
				t.Run(job+", then "+recovery+", "+setup, func(t *testing.T) {
					t.Parallel()
					step := 1
					for ; ; step++ {
						s := setups(t, job)[setup]
						died := killed(t, s, job, step)
						recover(t, s)
						checkOnlyOther(t, s, step)
						if !died || t.Failed() {
							break
						}
					}
					if step < 4 {
						t.Errorf("only %d steps", step)
					}
				})
			}
		}
	}
}

// checkOnlyOther wants no file but those of the other, if it has leases. Those of earlier boots may wait for their turn.
func checkOnlyOther(t *testing.T, s *Store, step int) {
	t.Helper()
	if has, err := s.Get(pod("other")); err != nil || len(has) == 1 {
		t.Errorf("killed at step %d: the other has %v, %v", step, has, err)
	}
	got := []string{}
	for _, name := range strings.Fields(files(t, s)) {
		if r, err := s.read(name); !errors.Is(err, errStale) && r.Owner != pod("other") {
			got = append(got, name)
		}
	}
	if len(got) != 0 {
		t.Errorf("killed at step %d: left are %s", step, got)
	}
}

// TestFail has each step fail in turn: an error, nothing of v's new, and the next try succeeds.
func TestFail(t *testing.T) {
	injected := errors.New("injected")
	for _, setup := range []string{"fresh", "after a boot"} {
		for _, job := range []string{"reserve", "release", "keep"} {
			for step := 1; ; step++ {
				s := setups(t, job)[setup]
				other := leased(t, s)
				left, failed := step, ""
				s.step = func(what string) error {
					if left--; left == 0 {
						failed = what
						return injected
					}
					return nil
				}
				var err error
				run := map[string]func(){
					"reserve": func() { _, err = s.Reserve(pod("v"), dual, nil) },
					"release": func() { _, err = s.Release(pod("v")) },
					"keep":    func() { _, err = s.Keep(func(o Owner) bool { return o != pod("v") }) },
				}[job]
				run()
				if failed == "" {
					if step < 4 {
						t.Errorf("%s: only %d steps", job, step)
					}
					break
				}
				if !errors.Is(err, injected) || !strings.Contains(err.Error(), failed) || strings.Contains(err.Error(), "\n") {
					t.Errorf("%s, %s, step %d (%s): %v", job, setup, step, failed, err)
				}
				if job == "reserve" {
					want(t, fmt.Sprintf("leases after step %d (%s) failed", step, failed), leased(t, s), other)
				}
				if run(); err != nil {
					t.Errorf("%s again after step %d (%s): %v", job, step, failed, err)
				}
				release(t, s, pod("v"))
				checkOnlyOther(t, s, step)
			}
		}
	}
}
