// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/bench"
	"mustang/internal/result"
	"mustang/internal/testkit"
)

// fault is something that is wrong with a program of this machine.
type fault struct {
	program string
	script  string // that is there in its place; empty if nothing is
	suite   string
	sound   string // the ID of a row that is measured
	broken  string // the ID of a row that can't be
	reason  string // part of why
}

var faults = map[string]fault{
	"dockerd ends": {
		program: "dockerd", script: "echo first words >&2; echo no good >&2; exit 1",
		suite: "docker", sound: "host-to-host", broken: "host-mode", reason: "dockerd ended: first words | no good",
	},
	"no dockerd": {
		program: "dockerd",
		suite:   "docker", sound: "host-to-host", broken: "host-mode", reason: "dockerd is not installed (Debian package docker.io)",
	},
	"ovs-vswitchd ends": {
		program: "ovs-vswitchd", script: "echo no good >&2; exit 1",
		suite: "switching", sound: "same-host/bridge/veth", broken: "same-host/ovs/veth", reason: "ovs-vswitchd ended (exit status 1): no good",
	},
	"no ovs-vswitchd": {
		program: "ovs-vswitchd",
		suite:   "switching", sound: "same-host/bridge/veth", broken: "same-host/ovs/veth",
		reason: "ovs-vswitchd is not installed (Debian package openvswitch-switch)",
	},
	"a guest ends at boot": {
		// The first file that it inherits is the console.
		program: "qemu-system-x86_64", script: "echo Booting Linux >&3; echo no good >&3; exit 1",
		suite: "switching", sound: "same-host/bridge/veth", broken: "same-host/bridge/vm",
		reason: `the guest ended before it had booted; its console: "Booting Linux | no good"`,
	},
	"no qemu": {
		program: "qemu-system-x86_64",
		suite:   "switching", sound: "same-host/bridge/veth", broken: "same-host/bridge/vm",
		reason: "qemu-system-x86_64 is not installed (Debian package qemu-system-x86)",
	},
}

// TestFaults runs suites on machines that lack something. The rows that need it
// fail with a reason, the others are measured, and nothing is left.
func TestFaults(t *testing.T) {
	testkit.NotInGuest(t)
	testkit.RequireRoot(t)
	for _, f := range faults {
		testkit.RequireTool(t, f.program)
	}
	program := staticProgram(t)
	for name, f := range faults {
		t.Run(name, func(t *testing.T) {
			ownMounts(t)
			f.provoke(t)
			s := started{out: t.TempDir(), state: filepath.Join(t.TempDir(), "state"), stderr: new(bytes.Buffer)}
			s.cmd = exec.Command(program, "bench", f.suite, "--only", f.sound, "--only", f.broken, "--rounds", "1", "--duration", "20ms", "--out", s.out)
			s.cmd.Env = append(os.Environ(), envStateDir+"="+s.state)
			s.cmd.Stderr = s.stderr
			_ = s.cmd.Run() // what it comes to is seen by the exit code
			if code := s.cmd.ProcessState.ExitCode(); code != exitFailed {
				t.Errorf("exit code %d, want %d: %s", code, exitFailed, s.stderr)
			}
			if left := s.remains(t); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
			f.check(t, s)
		})
	}
}

// check checks that only the broken rows failed, and that their reason is a line.
func (f fault) check(t *testing.T, s started) {
	t.Helper()
	file, err := result.Read(filepath.Join(s.out, bench.ResultsName))
	if err != nil {
		t.Fatalf("%v: %s", err, s.stderr)
	}
	failed := 0
	for _, row := range file.Rows {
		switch {
		case row.ID != f.broken:
			if row.Status != result.StatusOK || len(row.Samples) != 1 {
				t.Errorf("%v: %s %s, %d samples, want it measured", row.Key(), row.Status, row.Reason, len(row.Samples))
			}
		case row.Status != result.StatusFailed || !strings.Contains(row.Reason, f.reason) || strings.Contains(row.Reason, "\n"):
			t.Errorf("%v: %s %q, want it failed: %s", row.Key(), row.Status, row.Reason, f.reason)
		default:
			failed++
		}
	}
	if failed == 0 || failed == len(file.Rows) {
		t.Errorf("%d of %d rows failed", failed, len(file.Rows))
	}
	if told := strings.Count(s.stderr.String(), ": failed: "); told != failed {
		t.Errorf("%d rows are said to have failed, want %d: %s", told, failed, s.stderr)
	}
}

// provoke puts the script in the program's place, in the thread's own mount
// namespace; or what can't be executed.
func (f fault) provoke(t *testing.T) {
	t.Helper()
	path, err := exec.LookPath(f.program)
	if err != nil {
		t.Fatal(err)
	}
	instead := filepath.Join(t.TempDir(), f.program)
	mode := os.FileMode(0o755)
	if f.script == "" {
		mode = 0o644
	}
	if err := os.WriteFile(instead, []byte("#!/bin/sh\n"+f.script+"\n"), mode); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(instead, path, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
}

// ownMounts gives the test a mount namespace of its own, which the processes that
// it starts share.
func ownMounts(t *testing.T) {
	t.Helper()
	runtime.LockOSThread() // for good: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		t.Fatal(err)
	}
}

// TestFullDisk fills the disk that the result is on while it is measured.
func TestFullDisk(t *testing.T) {
	testkit.RequireRoot(t)
	ownMounts(t)
	out := t.TempDir()
	if err := unix.Mount("none", out, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Unmount(out, unix.MNT_DETACH) }()
	s := startProgram(t, "mustang", out, "pod-links", "--only", "veth+ebpf")
	s.awaitRows(t, 1)
	filler, err := os.Create(filepath.Join(out, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	defer filler.Close()
	ended := make(chan error, 1)
	go func() { ended <- s.cmd.Wait() }()
	for deadline := time.Now().Add(20 * time.Second); len(ended) == 0; time.Sleep(time.Millisecond) {
		if _, err := filler.Write(make([]byte, 4096)); err != nil && !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
		if time.Now().After(deadline) {
			t.Fatalf("it goes on: %s", s.stderr)
		}
	}
	if code := s.cmd.ProcessState.ExitCode(); code != exitFailed {
		t.Errorf("exit code %d, want %d: %s", code, exitFailed, s.stderr)
	}
	path := filepath.Join(out, bench.ResultsName)
	lines := strings.Split(strings.TrimSpace(s.stderr.String()), "\n")
	want := "mustang: write results " + path + ": no space left on device"
	if slices.Index(lines, want) != len(lines)-1 || strings.Count(s.stderr.String(), "no space") != 1 {
		t.Errorf("stderr %q, want one line: %s", lines, want)
	}
	if file, err := result.Read(path); err != nil || len(file.Rows) == 0 || file.Rows[0].Status != result.StatusOK {
		t.Errorf("what was measured is lost: %v, %v", file.Rows, err)
	}
	if entries, err := os.ReadDir(out); err != nil || len(entries) != 2 {
		t.Errorf("in the directory are %v, %v, want the result and the filler", entries, err)
	}
	if err := unix.Unmount(out, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	if left := s.remains(t); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// TestDockerInterrupted ends a bench of Docker by Ctrl-C.
func TestDockerInterrupted(t *testing.T) {
	testkit.NotInGuest(t)
	testkit.RequireRoot(t)
	testkit.RequireTool(t, "dockerd")
	s := startProgram(t, staticProgram(t), t.TempDir(), "docker", "--only", "host-mode")
	s.awaitRows(t, 2)
	is := func(program string) func(string) bool {
		return func(line string) bool { return strings.Contains(line, program) }
	}
	for _, program := range []string{"dockerd ", "containerd ", "traffic-agent"} {
		if left := s.remains(t); !slices.ContainsFunc(left, is(program)) {
			t.Fatalf("no %s is seen in %q: the test shows nothing", program, left)
		}
	}
	if err := s.cmd.Process.Signal(unix.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = s.cmd.Wait()
	if code := s.cmd.ProcessState.ExitCode(); code != exitFailed {
		t.Errorf("exit code %d, want %d: %s", code, exitFailed, s.stderr)
	}
	if left := s.remains(t); len(left) > 0 {
		t.Errorf("left after Ctrl-C: %q", left)
	}
	file, err := result.Read(filepath.Join(s.out, bench.ResultsName))
	if err != nil || !file.Run.Interrupted || len(file.Rows) != 2 {
		t.Errorf("interrupted %t with %d rows, %v, want what was done", file.Run.Interrupted, len(file.Rows), err)
	}
}
