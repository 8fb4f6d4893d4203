// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

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
				if broken && (row.Status != result.StatusFailed || !strings.Contains(row.Reason, f.reason) ||
					strings.Contains(row.Reason, "\n")) {
					t.Errorf("%v: %s %q, want it failed: %s", row.Key(), row.Status, row.Reason, f.reason)
				}
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
