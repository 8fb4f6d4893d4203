// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/datapath/objects"
	"mustang/internal/testkit"
)

// lockedRoot is a datapath with a service, both of whose locks a stopped process has.
type lockedRoot struct {
	env    []string
	holder int
}

func newLockedRoot(t *testing.T) lockedRoot {
	t.Helper()
	testkit.RequireTool(t, "flock")
	root := testkit.BPFFS(t) + "/root"
	l := lockedRoot{env: append(os.Environ(), cli.EnvBPFRoot+"="+root, envStateDir+"="+t.TempDir())}
	if _, stderr, err := l.run(t, "svc", "add", "--service=10.96.0.1:80", "--backend=10.0.0.1:80"); err != nil {
		t.Fatalf("svc add: %v: %s", err, stderr)
	}
	links := filepath.Join(root, fmt.Sprintf("v%d", objects.LayoutVersion), "links")
	// One process, which has both locks.
	cmd := exec.Command("flock", "--no-fork", root, "flock", "--no-fork", links, "sh", "-c", "kill -STOP $$; true")
	testkit.Succeed(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	l.holder = cmd.Process.Pid
	testkit.Eventually(t, time.Second, func() error {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", l.holder))
		if err == nil && !bytes.Contains(stat, []byte(") T ")) {
			err = fmt.Errorf("not stopped: %s", stat)
		}
		return err
	})
	return l
}

// run runs the program to its end.
func (l lockedRoot) run(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	cmd := exec.Command("mustang", args...)
	var out, errs bytes.Buffer
	cmd.Env, cmd.Stdout, cmd.Stderr = l.env, &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

// named returns an error unless text is lines that all name the holder.
func (l lockedRoot) named(text string, lines int) error {
	holder := fmt.Sprintf("process %d (sh, stopped) has it", l.holder)
	if strings.Count(text, "\n") != lines || strings.Count(text, holder) != lines {
		return fmt.Errorf("stderr %q, want %d lines that name %s", text, lines, holder)
	}
	return nil
}

// writingCommands need one of the locks.
func writingCommands() [][]string {
	return [][]string{
		{"svc", "add", "--service=10.96.0.2:80", "--backend=10.0.0.1:80"},
		{"svc", "rm", "--service=10.96.0.1:80"},
		{"ep", "rm", "1"},
		{"datapath", "unload"},
	}
}

// TestListsTakeNoLock reads everything behind a stopped process that has the locks.
func TestListsTakeNoLock(t *testing.T) {
	testkit.RequireRoot(t)
	l := newLockedRoot(t)
	for _, args := range []string{"svc ls", "ep ls", "uplink ls", "socket ls", "status", "counters", "links", "lab ls",
		"version"} {
		if _, stderr, err := l.run(t, append(strings.Fields(args), "--wait=0")...); err != nil || stderr != "" {
			t.Errorf("%s: %v: %s", args, err, stderr)
		}
	}
	if stdout, _, err := l.run(t, "svc", "ls"); err != nil || !strings.Contains(stdout, "10.96.0.1") {
		t.Errorf("svc ls: %v: %s", err, stdout)
	}
}

// TestWaitIsBounded gives up behind a stopped process, and names it: at once, or after a line that says whom it waits
// for.
func TestWaitIsBounded(t *testing.T) {
	testkit.RequireRoot(t)
	l := newLockedRoot(t)
	for _, args := range writingCommands() {
		_, stderr, err := l.run(t, append(args, "--wait=0")...)
		if err == nil {
			t.Errorf("%q passed a locked lock", args)
		}
		if err := l.named(stderr, 1); err != nil {
			t.Errorf("%q --wait=0: %v", args, err)
		}
	}
	_, stderr, err := l.run(t, "svc", "add", "--service=10.96.0.2:80", "--backend=10.0.0.1:80", "--wait=1500ms")
	if err == nil {
		t.Error("a bounded wait passed a locked lock")
	}
	if err := l.named(stderr, 2); err != nil {
		t.Error(err)
	}
}

// TestWaitHeedsSignals ends commands that wait for a stopped process, once they have said so.
func TestWaitHeedsSignals(t *testing.T) {
	testkit.RequireRoot(t)
	l := newLockedRoot(t)
	for i, args := range writingCommands() {
		signal := []unix.Signal{unix.SIGTERM, unix.SIGINT}[i%2]
		cmd := exec.Command("mustang", append(args, "--wait=1h")...)
		cmd.Env = l.env
		path := filepath.Join(t.TempDir(), "stderr")
		file := testkit.Must(os.Create(path))(t)
		defer file.Close()
		cmd.Stderr = file
		testkit.Succeed(t, cmd.Start())
		testkit.Eventually(t, 2*time.Second, func() error { return l.named(readText(t, path), 1) })
		testkit.Succeed(t, cmd.Process.Signal(signal))
		_ = cmd.Wait()
		text := readText(t, path)
		if code := cmd.ProcessState.ExitCode(); code != exitFailed || !strings.Contains(text, "interrupted") {
			t.Errorf("%q after %s: exit code %d: %s", args, signal, code, text)
		}
		if err := l.named(text, 2); err != nil {
			t.Errorf("%q: %v", args, err)
		}
	}
	if stdout, _, err := l.run(t, "svc", "ls"); err != nil || strings.Count(stdout, "\n") != 2 {
		t.Errorf("a command that only waited changed something: %v: %s", err, stdout)
	}
}

func readText(t *testing.T, path string) string {
	t.Helper()
	text := testkit.Must(os.ReadFile(path))(t)
	return string(text)
}
