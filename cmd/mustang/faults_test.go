// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
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

// fault is something that is wrong with a program of this machine.
type fault struct {
	program string
	script  string // that is there in its place; empty if nothing is
	suite   string
	sound   string // the ID of a row that is measured
	broken  string // the ID of a row that can't be
	reason  string // part of why it failed
	missing string // why it is skipped; empty if it fails
}

var faults = map[string]fault{
	"dockerd ends": {
		program: "dockerd", script: "echo first words >&2; echo no good >&2; exit 1",
		suite: "docker", sound: "host-to-host", broken: "host-mode", reason: "dockerd ended: first words | no good",
	},
	"no dockerd": {
		program: "dockerd",
		suite:   "docker", sound: "host-to-host", broken: "host-mode", missing: "dockerd is missing: apt install docker.io",
	},
	"ovs-vswitchd ends": {
		program: "ovs-vswitchd", script: "echo no good >&2; exit 1",
		suite: "switching", sound: "same-host/bridge/veth", broken: "same-host/ovs/veth", reason: "ovs-vswitchd ended (exit status 1): no good",
	},
	"no ovs-vswitchd": {
		program: "ovs-vswitchd",
		suite:   "switching", sound: "same-host/bridge/veth", broken: "same-host/ovs/veth",
		missing: "ovs-vswitchd is missing: apt install openvswitch-switch",
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
		missing: "qemu-system-x86_64 is missing: apt install qemu-system-x86",
	},
}

// TestFaults runs suites on machines that lack something. The rows that need it
// fail with a reason, or are skipped where a program is not installed, the others are measured, and nothing is left.
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
			s.cmd = exec.Command(program, "bench", f.suite, "--only", f.sound, "--only", f.broken, "--rounds", "1", "--slice", "2ms", "--out", s.out)
			s.cmd.Env = append(os.Environ(), envStateDir+"="+s.state)
			s.cmd.Stderr = s.stderr
			_ = s.cmd.Run() // what it comes to is seen by the exit code
			want := exitFailed
			if f.missing != "" {
				want = 0
			}
			if code := s.cmd.ProcessState.ExitCode(); code != want {
				t.Errorf("exit code %d, want %d: %s", code, want, s.stderr)
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
	file, err := readResults(s.out)
	if err != nil {
		t.Fatalf("%v: %s", err, s.stderr)
	}
	failed, skipped := 0, 0
	for _, row := range file.Rows {
		switch {
		case row.ID != f.broken && row.Repeats != f.broken:
			if row.Status != result.StatusOK || len(row.Samples) != 1 {
				t.Errorf("%v: %s %s, %d samples, want it measured", row.Key(), row.Status, row.Reason, len(row.Samples))
			}
		case f.missing != "":
			if row.Status != result.StatusSkipped || row.Reason != f.missing {
				t.Errorf("%v: %s %q, want it skipped: %s", row.Key(), row.Status, row.Reason, f.missing)
			}
			skipped++
		case row.Status != result.StatusFailed || !strings.Contains(row.Reason, f.reason) || strings.Contains(row.Reason, "\n"):
			t.Errorf("%v: %s %q, want it failed: %s", row.Key(), row.Status, row.Reason, f.reason)
		default:
			failed++
		}
	}
	if broken := failed + skipped; broken == 0 || broken == len(file.Rows) {
		t.Errorf("%d of %d rows failed or are skipped", broken, len(file.Rows))
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
