// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/result"
	"mustang/internal/testkit"
)

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
