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
	out, err := l.command("svc add --service=10.96.0.1:80 --backend=10.0.0.1:80").CombinedOutput()
	testkit.Require(t, err == nil, "svc add: %v: %s", err, out)
	links := filepath.Join(root, fmt.Sprintf("v%d", objects.LayoutVersion), "links")
	// One process, which has both locks.
	cmd := exec.Command("flock", "--no-fork", root, "flock", "--no-fork", links, "sh", "-c", "kill -STOP $$; true")
	testkit.Succeed(t, cmd.Start())
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	l.holder = cmd.Process.Pid
	testkit.Eventually(t, 10*time.Second, func() error {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", l.holder))
		if err == nil && !bytes.Contains(stat, []byte(") T ")) {
			err = fmt.Errorf("not stopped: %s", stat)
		}
		return err
	})
	return l
}

func (l lockedRoot) command(line string) *exec.Cmd {
	cmd := exec.Command("mustang", strings.Fields(line)...)
	cmd.Env = l.env
	return cmd
}

// named returns an error unless text is lines that all name the holder.
func (l lockedRoot) named(text string, lines int) error {
	holder := fmt.Sprintf("process %d (sh, stopped) has it", l.holder)
	if strings.Count(text, "\n") != lines || strings.Count(text, holder) != lines {
		return fmt.Errorf("stderr %q, want %d lines that name %s", text, lines, holder)
	}
	return nil
}

// TestBehindStoppedProcess has a stopped process hold the locks. Lists still read. Commands that write give up and
// name it: at once, or after a line that names it; or they end by a signal.
func TestBehindStoppedProcess(t *testing.T) {
	testkit.RequireRoot(t)
	l := newLockedRoot(t)
	for _, line := range []string{"ep ls", "uplink ls", "socket ls", "status", "counters", "links", "lab ls", "version"} {
		out, err := l.command(line + " --wait=0").CombinedOutput()
		testkit.Check(t, err == nil && !bytes.Contains(out, []byte("has it")), "%s: %v: %s", line, err, out)
	}
	const add = "svc add --service=10.96.0.2:80 --backend=10.0.0.1:80"
	for i, line := range []string{add, "svc rm --service=10.96.0.1:80", "ep rm 1", "datapath unload"} {
		out, err := l.command(line + " --wait=0").CombinedOutput()
		testkit.Check(t, err != nil && l.named(string(out), 1) == nil,
			"%q --wait=0: %v: %v", line, err, l.named(string(out), 1))
		signal := []unix.Signal{unix.SIGTERM, unix.SIGINT}[i%2]
		var stderr output
		cmd := l.command(line + " --wait=1h")
		cmd.Stderr = &stderr
		testkit.Succeed(t, cmd.Start())
		testkit.Eventually(t, 20*time.Second, func() error { return l.named(stderr.String(), 1) })
		testkit.Succeed(t, cmd.Process.Signal(signal))
		_ = cmd.Wait()
		text := stderr.String()
		code := cmd.ProcessState.ExitCode()
		testkit.Check(t, code == exitFailed && strings.Contains(text, "interrupted") && l.named(text, 2) == nil,
			"%q after %s: exit code %d: %s", line, signal, code, text)
	}
	out, err := l.command(add + " --wait=1500ms").CombinedOutput()
	testkit.Check(t, err != nil && l.named(string(out), 2) == nil, "a bounded wait: %v: %v", err, l.named(string(out), 2))
	out, err = l.command("svc ls --wait=0").Output()
	testkit.Check(t, err == nil && bytes.Count(out, []byte("\n")) == 2 && bytes.Contains(out, []byte("10.96.0.1")),
		"services afterwards: %v: %s", err, out)
}

func readText(t *testing.T, path string) string {
	t.Helper()
	return string(testkit.Must(os.ReadFile(path))(t))
}
