// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/load"
	"mustang/internal/netns"
	"mustang/internal/result"
	"mustang/internal/testkit"
)

// started is a bench that runs in a process of its own.
type started struct {
	cmd    *exec.Cmd
	stderr *bytes.Buffer
	out    string
	state  string
}

const benchRows = 3 // the number of rows that startBench measures

// startBench starts a bench that builds its labs many times, and waits until it has measured something.
func startBench(t *testing.T) started {
	t.Helper()
	testkit.RequireRoot(t)
	s := startProgram(t, "mustang", t.TempDir(), "pod-links", "--rounds", "160", "--slice", "5ms", "--workload", "tcp_rr",
		"--only", "veth+ebpf", "--only", "macvlan/cluster-ip/nftables")
	s.awaitRows(t, benchRows)
	return s
}

func startProgram(t *testing.T, program, out string, args ...string) started {
	t.Helper()
	s := started{out: out, state: filepath.Join(t.TempDir(), "state"), stderr: new(bytes.Buffer)}
	s.cmd = exec.Command(program, append([]string{"bench", "--out", s.out}, args...)...)
	s.cmd.Env = append(os.Environ(), envStateDir+"="+s.state)
	s.cmd.Stderr = s.stderr
	s.cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true} // as a shell does
	testkit.Succeed(t, s.cmd.Start())
	t.Cleanup(func() { _, _ = s.cmd.Process.Kill(), s.cmd.Wait() })
	return s
}

func (s started) awaitRows(t *testing.T, rows int) {
	t.Helper()
	testkit.Eventually(t, 5*time.Minute, func() error {
		file, err := readResults(s.out)
		if err == nil && len(file.Rows) < rows {
			err = fmt.Errorf("%d rows", len(file.Rows))
		}
		return err
	})
}

func (s started) remains(t *testing.T) []string {
	t.Helper()
	return remains(t, fmt.Sprintf("mst-bench-%d-", s.cmd.Process.Pid), s.state)
}

// remains lists the remains of labs whose names have a prefix: namespaces, mounts, records, control groups, processes.
func remains(t *testing.T, prefix, state string) []string {
	t.Helper()
	left := testkit.Must(netns.List(prefix))(t)
	mounts := testkit.Must(os.ReadFile("/proc/thread-self/mountinfo"))(t)
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, prefix) || strings.Contains(line, state) {
			left = append(left, strings.TrimSpace(line))
		}
	}
	records, err := os.ReadDir(filepath.Join(state, "labs"))
	testkit.Require(t, err == nil || errors.Is(err, fs.ErrNotExist), "%v", err)
	for _, record := range records {
		left = append(left, record.Name())
	}
	for _, pattern := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} {
		left = append(left, testkit.Must(filepath.Glob(pattern+prefix+"*"))(t)...)
	}
	return append(left, processes(t, prefix, state)...)
}

// processes returns the command lines of some processes: in a control group whose name begins with prefix, with our
// state directory, or with a mounted directory of one of the labs, as all of Docker's.
func processes(t *testing.T, prefix, state string) []string {
	t.Helper()
	paths := testkit.Must(filepath.Glob("/proc/[0-9]*/cmdline"))(t)
	mounted := "/" + strings.TrimPrefix(prefix, "mst-")
	var lines []string
	for _, path := range paths { // some end meanwhile
		read := func(name string) string {
			text, _ := os.ReadFile(filepath.Join(filepath.Dir(path), name))
			return string(text)
		}
		line := strings.TrimSpace(strings.ReplaceAll(read("cmdline"), "\x00", " "))
		if line == "" { // it has ended, and waits for its parent
			continue
		}
		if strings.Contains(read("cgroup"), "/"+prefix) || strings.Contains(read("mountinfo"), mounted) ||
			strings.Contains(read("environ"), envStateDir+"="+state+"\x00") {
			lines = append(lines, line)
		}
	}
	return lines
}

// agents returns the load agents for whose directory below /proc is returns true.
func agents(t *testing.T, is func(proc string) bool) (pids []int) {
	t.Helper()
	paths := testkit.Must(filepath.Glob("/proc/[0-9]*"))(t)
	for _, path := range paths {
		line, _ := os.ReadFile(path + "/cmdline") // a process may have ended
		if pid, err := strconv.Atoi(filepath.Base(path)); err == nil && bytes.Contains(line, []byte(load.Command)) &&
			is(path) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func TestBenchKilled(t *testing.T) {
	t.Parallel()
	s := startBench(t)
	inherited := func(proc string) bool {
		environ, _ := os.ReadFile(proc + "/environ")
		return bytes.Contains(environ, []byte(envStateDir+"="+s.state+"\x00"))
	}
	testkit.Eventually(t, 2*time.Minute, func() error { // they are replaced with the labs
		if len(agents(t, inherited)) == 0 {
			return errors.New("no load agent is seen: the test shows nothing")
		}
		return nil
	})
	testkit.Succeed(t, s.cmd.Process.Kill())
	_ = s.cmd.Wait()
	testkit.Require(t, len(s.remains(t)) != 0, "a killed bench left nothing: the test shows nothing")
	env := map[string]string{envStateDir: s.state}
	code, _, stderr := command(t, env, "version")
	testkit.Require(t, code == exitDone, "version: exit code %d: %s", code, stderr)
	left := s.remains(t)
	testkit.Check(t, len(left) == 0, "left after the next command: %q", left)
	code, stdout, stderr := command(t, env, "lab", "ls", "-o", "json")
	testkit.Require(t, code == exitDone, "lab ls: exit code %d: %s", code, stderr)
	var listed struct{ Labs []any }
	err := json.Unmarshal([]byte(stdout), &listed)
	testkit.Check(t, err == nil && len(listed.Labs) == 0, "lab ls shows %v (%v)", listed.Labs, err)
	file, err := readResults(s.out)
	testkit.Check(t, err == nil && len(file.Rows) >= benchRows,
		"what was measured is lost: %d rows, %v", len(file.Rows), err)
}

// TestBenchInterrupted ends a bench by Ctrl-C, and by the end of its terminal: both go to all processes of its group.
func TestBenchInterrupted(t *testing.T) {
	t.Parallel()
	hearHangups(t)
	for _, signal := range []unix.Signal{unix.SIGINT, unix.SIGHUP} {
		t.Run(signal.String(), func(t *testing.T) { benchInterrupted(t, signal) })
	}
}

func benchInterrupted(t *testing.T, signal unix.Signal) {
	s := startBench(t)
	testkit.Succeed(t, unix.Kill(-s.cmd.Process.Pid, signal))
	_ = s.cmd.Wait()
	code := s.cmd.ProcessState.ExitCode()
	testkit.Check(t, code == exitFailed, "exit code %d, want %d: %s", code, exitFailed, s.stderr)
	left := s.remains(t)
	testkit.Check(t, len(left) == 0, "left after the signal: %q", left)
	file := testkit.Must(readResults(s.out))(t)
	checkSchema(t, s.out)
	testkit.Check(t, file.Run.Interrupted && len(file.Rows) >= benchRows,
		"interrupted %t with %d rows, want what was done", file.Run.Interrupted, len(file.Rows))
	for _, row := range file.Rows {
		// On a busy machine a row may have had hardly a turn.
		testkit.Check(t, row.Status == result.StatusOK || strings.HasSuffix(row.Reason, "no data was transferred"),
			"%s: %s: %s", row.ID, row.Status, row.Reason)
	}
}
