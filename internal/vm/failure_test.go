// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"mustang/internal/testkit"
)

// TestPanic has the guest's kernel panic.
func TestPanic(t *testing.T) {
	t.Parallel()
	o, _, _ := guestOptions(t, "sh", "-c", "echo c > /proc/sysrq-trigger; sleep 1000")
	_, err := Run(t.Context(), o)
	var guest *GuestError
	testkit.Check(t, errors.As(err, &guest) && strings.Contains(err.Error(), "sysrq triggered crash"), "error %v", err)
}

// abandonVariable makes the test program start a guest for the directory that it names, until it is killed.
const abandonVariable = "MUSTANG_TEST_ABANDON"

// abandonOptions holds the guest's options, as JSON.
const abandonOptions = "MUSTANG_TEST_ABANDON_OPTIONS"

// abandon runs a guest that creates a file in a directory, and stays.
func abandon(dir string) (exitCode int) {
	var o Options
	err := json.Unmarshal([]byte(os.Getenv(abandonOptions)), &o)
	if err == nil {
		o.Command = []string{"sh", "-c", "touch \"$1/there\"; sleep 1000", "sh", dir}
		_, err = Run(context.Background(), o)
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// TestKilled kills the process that runs a guest.
func TestKilled(t *testing.T) {
	t.Parallel()
	o, _, _ := guestOptions(t)
	o.Stdout, o.Stderr = nil, nil
	dir := t.TempDir()
	o.Share = dir
	options := testkit.Must(json.Marshal(o))(t)
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), abandonVariable+"="+dir, abandonOptions+"="+string(options))
	cmd.Stderr = os.Stderr
	testkit.Succeed(t, cmd.Start())
	defer cmd.Wait() // it returns an error: the guest was killed
	defer cmd.Process.Kill()
	testkit.Eventually(t, 3*time.Minute, func() error {
		_, err := os.Stat(filepath.Join(dir, "there"))
		return err
	})
	pids := testkit.Must(children(cmd.Process.Pid))(t)
	if len(pids) != 3 { // QEMU, and a daemon for each of the two directories
		t.Errorf("%d processes, want 3", len(pids))
	}
	testkit.Succeed(t, cmd.Process.Kill())
	testkit.Eventually(t, 10*time.Second, func() error {
		for _, pid := range pids {
			state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			if err == nil && !strings.Contains(string(state), ") Z ") {
				return fmt.Errorf("still there: %s", state)
			}
		}
		return nil
	})
}

// children lists the child processes of a process.
func children(pid int) ([]int, error) {
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return nil, err
	}
	var out []int
	for _, list := range lists {
		data, err := os.ReadFile(list)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		for field := range strings.FieldsSeq(string(data)) {
			n, err := strconv.Atoi(field)
			if err != nil {
				return nil, err
			}
			out = append(out, n)
		}
	}
	return out, nil
}
