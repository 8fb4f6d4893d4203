// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/lab"
	"mustang/internal/testkit"
	"mustang/internal/traffic"
)

// processTree lists a process and its children.
func processTree(t *testing.T, pid int) []int {
	t.Helper()
	pids := []int{pid}
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range lists {
		text, err := os.ReadFile(list)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		for field := range strings.FieldsSeq(string(text)) {
			child, err := strconv.Atoi(field)
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, child)
		}
	}
	return pids
}

// mustEnd waits until processes have ended.
func mustEnd(t *testing.T, pids []int) {
	t.Helper()
	for _, pid := range pids {
		testkit.Eventually(t, 5*time.Second, func() error {
			if err := unix.Kill(pid, 0); !errors.Is(err, unix.ESRCH) && !zombie(pid) {
				return fmt.Errorf("process %d lives: %v", pid, err)
			}
			return nil
		})
	}
}

// guestVariable makes the test's executable the owner of a lab with a guest that
// runs this program.
const guestVariable = "MUSTANG_TEST_LAB_GUEST"

// guestChild builds a lab, boots a guest in it, says so, and waits to be killed.
func guestChild(dir, program string) int {
	os.Unsetenv(guestVariable) // its own children are not such owners
	l, err := lab.Store{Dir: dir}.Up(context.Background(), options(lab.Options{Link: "tap", Guests: true}))
	if err == nil {
		var a *traffic.Agent
		a, err = traffic.StartAgent(traffic.AgentOptions{
			Exe: program, CPU: -1, Timeout: time.Minute, Start: func(cmd *exec.Cmd) error { return l.Start(lab.PodA, cmd) },
		})
		if err == nil {
			fmt.Println(a.PID())
			_, _ = io.Copy(io.Discard, os.Stdin) // until the parent is gone
		}
	}
	fmt.Fprintln(os.Stderr, err)
	runtime.KeepAlive(l)
	return 1
}

// TestGuestOwnerKilled kills the process that owns a lab with a guest.
func TestGuestOwnerKilled(t *testing.T) {
	program := guestProgram(t)
	s := store(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), childVariable+"="+s.Dir, guestVariable+"="+program)
	cmd.Stderr = os.Stderr
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	_, scanErr := fmt.Fscan(out, &pid)
	var processes []int
	if scanErr == nil {
		processes = processTree(t, pid)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if scanErr != nil || len(processes) != 2 {
		t.Fatalf("the child: %v, processes %v", scanErr, processes)
	}
	if err := s.Reap(); err != nil {
		t.Fatal(err)
	}
	if left := leftovers(t, fmt.Sprintf("test-%d-", cmd.Process.Pid), s.Dir); len(left) > 0 {
		t.Errorf("left after Reap: %q", left)
	}
	mustEnd(t, processes)
}
