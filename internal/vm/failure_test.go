// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bytes"
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

const abandonOptions = "MUSTANG_TEST_ABANDON_OPTIONS" // holds the guest's options, as JSON

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

// FuzzReadFrame reads frames from any bytes: what a guest sends is not trusted. A frame
// that is read and written again is the same bytes.
func FuzzReadFrame(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{'1', 0, 0, 0, 2, 'h', 'i'})
	f.Add([]byte{'X', 0, 0, 0, 1, 7})
	f.Add([]byte{'S', 0, 0, 0, 0, 'X'})
	f.Add([]byte{'1', 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, data []byte) {
		read, err := readFrame(bytes.NewReader(data))
		if err != nil {
			return
		}
		var out bytes.Buffer
		testkit.Succeed(t, (&frameWriter{w: &out}).write(read.what, read.data))
		testkit.Check(t, len(read.data) <= maxFrame && bytes.HasPrefix(data, out.Bytes()),
			"% x was read as %q with %d bytes", data, read.what, len(read.data))
	})
}

const bareProgram = "./testdata/guest" // a program for bare guests

// bareOptions returns options for a bare guest that runs the program in testdata.
func bareOptions(t *testing.T, arguments ...string) Options {
	t.Helper()
	testkit.RequireRoot(t)
	testkit.RequireTool(t, qemu)
	kernel := testkit.Must(fetchOnce())(t)
	return Options{
		Kernel: kernel, Init: buildOnce(t, bareProgram), Bare: true, Command: append([]string{Program}, arguments...),
		MemoryMB: 128, Timeout: 5 * time.Minute,
	}
}

// TestInput sends a bare guest's command more input than any buffer holds, and the end of it.
func TestInput(t *testing.T) {
	t.Parallel()
	o := bareOptions(t)
	sent := bytes.Repeat([]byte("mustang\n"), 1<<17)
	var stdout, stderr bytes.Buffer
	o.Stdin, o.Stdout, o.Stderr = bytes.NewReader(sent), &stdout, &stderr
	code, err := Run(t.Context(), o)
	testkit.Check(t, err == nil && code == 3 && bytes.Equal(stdout.Bytes(), sent) && stderr.Len() <= 0,
		"exit code %d, %v; %d bytes of %d came back; stderr %q", code, err, stdout.Len(), len(sent), &stderr)
}

// TestNotBooted gives a guest no time to boot, and then runs a program that does not exist.
func TestNotBooted(t *testing.T) {
	t.Parallel()
	o := bareOptions(t)
	o.BootTimeout = time.Millisecond
	_, err := Run(t.Context(), o)
	var guest *GuestError
	if !errors.As(err, &guest) || !strings.Contains(err.Error(), "not booted after 1ms") ||
		strings.Contains(err.Error(), "\n") {
		t.Errorf("error %v", err)
	}
	var stderr bytes.Buffer
	o.BootTimeout, o.Command, o.Stderr = 0, []string{"no-such-program"}, &stderr
	if code, err := Run(t.Context(), o); err != nil || code != 127 ||
		!strings.Contains(stderr.String(), "no-such-program") {
		t.Errorf("exit code %d, %v, stderr %q", code, err, &stderr)
	}
}

// TestStatic checks that this package does not need C. With a C compiler, programs with package net are not static,
// and can't be a guest's Init.
func TestStatic(t *testing.T) {
	out := testkit.Must(exec.CommandContext(t.Context(), "go", "list", "-deps", "mustang/internal/vm").Output())(t)
	for _, name := range strings.Fields(string(out)) {
		testkit.Check(t, name != "net" && name != "os/user", "vm needs package %s", name)
	}
}
