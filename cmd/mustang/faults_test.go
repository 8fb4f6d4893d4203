// SPDX-License-Identifier: Apache-2.0

package main

import (
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

	"mustang/internal/result"
	"mustang/internal/testkit"
)

// fault is a program of this machine that ends at once, with a row that needs it and one that does not.
type fault struct {
	program, script      string
	suite, sound, broken string
	reason               string // part of why the broken row failed
}

var faults = []fault{
	{
		"dockerd", "echo first words >&2; echo no good >&2; exit 1",
		"docker", "host-to-host", "host-mode", "dockerd ended: first words | no good",
	},
	{
		"ovs-vswitchd", "echo no good >&2; exit 1",
		"switching", "same-host/bridge/veth", "same-host/ovs/veth", "ovs-vswitchd ended (exit status 1): no good",
	},
	{ // the first file that it inherits is the console
		"qemu-system-x86_64", "echo Booting Linux >&3; echo no good >&3; exit 1",
		"switching", "same-host/bridge/veth", "same-host/bridge/vm",
		`the guest ended before it had booted; its console: "Booting Linux | no good"`,
	},
}

// TestFaults runs suites with programs that end at once. The rows that need one fail with a reason in one line, the
// others are measured, and nothing is left.
func TestFaults(t *testing.T) {
	testkit.NotInGuest(t)
	testkit.RequireRoot(t)
	for _, f := range faults {
		testkit.RequireTool(t, f.program)
	}
	program := staticProgram(t, "mustang")
	for _, f := range faults {
		t.Run(f.program, func(t *testing.T) {
			ownMounts(t)
			f.provoke(t)
			s := startProgram(t, program, t.TempDir(), f.suite, "--only", f.sound, "--only", f.broken,
				"--rounds", "1", "--slice", "2ms", "--workload", "tcp_rr")
			_ = s.cmd.Wait() // what it comes to is seen by the exit code
			code := s.cmd.ProcessState.ExitCode()
			testkit.Check(t, code == exitFailed, "exit code %d, want %d: %s", code, exitFailed, s.stderr)
			left := s.remains(t)
			testkit.Check(t, len(left) == 0, "left: %q", left)
			file, err := readResults(s.out)
			testkit.Require(t, err == nil, "%v: %s", err, s.stderr)
			for _, row := range file.Rows {
				broken := row.ID == f.broken || row.Repeats == f.broken
				testkit.Check(t, !broken ||
					row.Status == result.StatusFailed && strings.Contains(row.Reason, f.reason) && !strings.Contains(row.Reason, "\n"),
					"%v: %s %q, want it failed: %s", row.Key(), row.Status, row.Reason, f.reason)
				testkit.Check(t, broken || row.Status == result.StatusOK,
					"%v: %s %s, want it measured", row.Key(), row.Status, row.Reason)
			}
		})
	}
}

// provoke puts the script in the program's place, in the thread's own mount namespace.
func (f fault) provoke(t *testing.T) {
	t.Helper()
	path := testkit.Must(exec.LookPath(f.program))(t)
	instead := filepath.Join(t.TempDir(), f.program)
	testkit.Succeed(t, os.WriteFile(instead, []byte("#!/bin/sh\n"+f.script+"\n"), 0o755))
	testkit.Succeed(t, unix.Mount(instead, path, "", unix.MS_BIND, ""))
}

// ownMounts gives the test a mount namespace of its own, which the processes that it starts share.
func ownMounts(t *testing.T) {
	t.Helper()
	runtime.LockOSThread() // for good: the thread ends with the test
	testkit.Succeed(t, unix.Unshare(unix.CLONE_NEWNS))
	testkit.Succeed(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""))
}

// TestFullDisk fills the disk that the result is on while it is measured.
func TestFullDisk(t *testing.T) {
	testkit.RequireRoot(t)
	ownMounts(t)
	out := t.TempDir()
	testkit.Succeed(t, unix.Mount("none", out, "tmpfs", 0, "size=1m"))
	defer func() { _ = unix.Unmount(out, unix.MNT_DETACH) }()
	s := startProgram(t, "mustang", out, "pod-links", "--only", "veth+ebpf",
		"--rounds", "160", "--slice", "5ms", "--workload", "tcp_rr")
	s.awaitRows(t, 1)
	filler := testkit.Must(os.Create(filepath.Join(out, "filler")))(t)
	defer filler.Close()
	ended := make(chan error, 1)
	go func() { ended <- s.cmd.Wait() }()
	for deadline := time.Now().Add(2 * time.Minute); len(ended) == 0; time.Sleep(time.Millisecond) {
		_, err := filler.Write(make([]byte, 4096))
		testkit.Require(t, err == nil || errors.Is(err, unix.ENOSPC), "%v", err)
		testkit.Require(t, !time.Now().After(deadline), "it goes on: %s", s.stderr)
	}
	code := s.cmd.ProcessState.ExitCode()
	testkit.Check(t, code == exitFailed, "exit code %d, want %d: %s", code, exitFailed, s.stderr)
	run := testkit.Must(os.Readlink(filepath.Join(out, result.LatestName)))(t)
	path := filepath.Join(out, run, result.FileName)
	lines := strings.Split(strings.TrimSpace(s.stderr.String()), "\n")
	want := "mustang: write results " + path + ": no space left on device"
	testkit.Check(t, slices.Index(lines, want) == len(lines)-1 && strings.Count(s.stderr.String(), "no space") == 1,
		"stderr %q, want one line: %s", lines, want)
	if file, err := result.Read(path); err != nil || len(file.Rows) == 0 || file.Rows[0].Status != result.StatusOK {
		t.Errorf("what was measured is lost: %v, %v", file.Rows, err)
	}
	if entries, err := os.ReadDir(out); err != nil || len(entries) != 3 {
		t.Errorf("in the directory are %v, %v, want the run, the link to it and the filler", entries, err)
	}
	entries, err := os.ReadDir(filepath.Join(out, run))
	testkit.Check(t, err == nil && len(entries) == 1, "in the run's directory are %v, %v, want the result", entries, err)
	testkit.Succeed(t, unix.Unmount(out, unix.MNT_DETACH))
	left := s.remains(t)
	testkit.Check(t, len(left) == 0, "left: %q", left)
}
