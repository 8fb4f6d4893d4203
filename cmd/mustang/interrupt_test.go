// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/load"
	"mustang/internal/testkit"
)

// TestBootInterrupted ends a bench by Ctrl-C while a guest hangs at boot, which
// might last for a minute.
func TestBootInterrupted(t *testing.T) {
	testkit.NotInGuest(t)
	testkit.RequireRoot(t)
	testkit.RequireTool(t, "qemu-system-x86_64")
	ownMounts(t)
	hangs := fault{
		program: "qemu-system-x86_64",
		script:  `case "$*" in *"-accel kvm"*) exit 1;; esac; exec sleep 300`,
	}
	hangs.provoke(t)
	s := startProgram(t, staticProgram(t), t.TempDir(), "switching", "--only", "same-host/bridge/vm")
	testkit.Eventually(t, 20*time.Second, func() error {
		if left := s.remains(t); !slices.Contains(left, "sleep 300") {
			return fmt.Errorf("no guest among %q: %s", left, s.stderr)
		}
		return nil
	})
	if err := s.cmd.Process.Signal(unix.SIGINT); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.cmd.Wait() }()
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Fatal("it goes on")
	}
	if code := s.cmd.ProcessState.ExitCode(); code != exitFailed || !strings.HasSuffix(s.stderr.String(), "\nmustang: interrupted\n") {
		t.Errorf("exit code %d, want %d: %s", code, exitFailed, s.stderr)
	}
	testkit.Eventually(t, 5*time.Second, func() error { // QEMU dies with what started it, and no one waits for it
		if left := s.remains(t); len(left) > 0 {
			return fmt.Errorf("left after Ctrl-C: %q", left)
		}
		return nil
	})
}

// TestReportInterrupted has nobody read what a command prints of results: Ctrl-C ends it all the same.
func TestReportInterrupted(t *testing.T) {
	for _, args := range [][]string{{"report", soundFile, "-o", "csv"}, {"compare", soundFile, soundFile}} {
		output, stdout := io.Pipe()
		ctx, interrupt := context.WithCancel(t.Context())
		go func() {
			_, _ = output.Read(make([]byte, 1))
			interrupt()
		}()
		ended := make(chan int, 1)
		go func() {
			ended <- run(ctx, cli.Environment{Stdout: stdout, Stderr: io.Discard, Getenv: func(string) string { return "" }}, args)
		}()
		select {
		case code := <-ended:
			if code != exitFailed {
				t.Errorf("%v: exit code %d, want %d", args, code, exitFailed)
			}
		case <-time.After(20 * time.Second):
			t.Errorf("%v goes on", args)
		}
		_ = output.Close()
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
	for _, program := range []string{"dockerd ", "containerd ", load.Command} {
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
	file, err := readResults(s.out)
	if err != nil || !file.Run.Interrupted || len(file.Rows) != 2 {
		t.Errorf("interrupted %t with %d rows, %v, want what was done", file.Run.Interrupted, len(file.Rows), err)
	}
}
