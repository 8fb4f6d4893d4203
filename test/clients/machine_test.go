// SPDX-License-Identifier: Apache-2.0

package clients

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/datapath/objects"
	"mustang/internal/netns"
	"mustang/internal/testkit"
)

// machineVariable makes the test's executable the first process of a machine.
const machineVariable = "MUSTANG_TEST_CLIENTS_MACHINE"

// machine is a network, mount and PID namespace in which runtimes run. It shares the programs and control groups of
// this machine. Its own parts, in memory, are /run, /var/lib, /opt and changes of /etc.
//
// Its first process ends with the test, also if the test is killed. The kernel then kills
// all other processes in it. Only its control groups are left, see clearCgroups.
type machine struct {
	host  *netns.Namespace
	first *exec.Cmd
	// Set by install.
	plugin  plugin
	outside *netns.Namespace // the other end of the host's uplink
}

func newMachine(t testing.TB) *machine {
	t.Helper()
	testkit.RequireRoot(t)
	exe := testkit.Must(os.Executable())(t)
	m := &machine{host: testkit.Namespace(t, "host"), first: exec.Command(exe)}
	m.first.Env = append(os.Environ(), machineVariable+"=1")
	m.first.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS, Setsid: true}
	if _, err := m.first.StdinPipe(); err != nil { // the kernel closes it when this process ends
		t.Fatal(err)
	}
	out := testkit.Must(m.first.StdoutPipe())(t)
	testkit.Succeed(t, m.host.Start(m.first))
	t.Cleanup(func() {
		// All machines share the root of the control groups, to which our plugin attaches its
		// programs. The kernel detaches them with the machine's mounts, but some time later.
		err := objects.Remove(context.Background(), m.path(objects.DefaultRoot))
		testkit.Check(t, err == nil, "%v", err)
		_, _ = m.first.Process.Kill(), m.first.Wait()
		testkit.Succeed(t, removeCgroups(m.cgroup()))
	})
	line, _ := bufio.NewReader(out).ReadString('\n')
	testkit.Require(t, line == "ready\n", "start a machine: %s", strings.TrimSpace(line))
	return m
}

// firstProcess runs as the first process of a machine: it makes the mounts, reaps orphans,
// and ends with its standard input.
func firstProcess() int {
	if err := machineMounts(); err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("ready")
	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)
	go func() {
		for range children {
			for {
				if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); pid <= 0 || err != nil {
					break
				}
			}
		}
	}()
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

func (m *machine) path(name string) string {
	return filepath.Join(fmt.Sprintf("/proc/%d/root", m.first.Process.Pid), name)
}

// cgroup returns the name of the control group of the machine's containers, directly below the root of each hierarchy.
// Like the name of the machine's namespace it contains the owner's process ID.
func (m *machine) cgroup() string { return m.host.Name() }

// do runs fn on a thread with the machine's files and network. Processes that fn starts
// are processes of the machine. Paths of programs must be absolute.
func (m *machine) do(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() { // the main thread must not change its namespaces
			defer runtime.UnlockOSThread()
			done <- m.do(fn)
			return
		}
		err := m.enter() // the thread stays locked, and ends with this goroutine
		if err == nil {
			err = fn()
		}
		done <- err
	}()
	return <-done
}

func (m *machine) enter() error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare the working directory: %w", err)
	}
	fd, err := unix.PidfdOpen(m.first.Process.Pid, 0)
	if err != nil {
		return fmt.Errorf("open the machine's first process: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.Setns(fd, unix.CLONE_NEWNS|unix.CLONE_NEWNET|unix.CLONE_NEWPID); err != nil {
		return fmt.Errorf("enter the machine: %w", err)
	}
	return nil
}

// command returns a command of the machine. Its PATH holds only the programs of give:
// others that runtimes run, such as modprobe and apparmor_parser, change the kernel.
func (m *machine) command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(programDir, program), args...)
	cmd.Env = []string{"PATH=" + programDir, "HOME=/run", "TMPDIR=/run"}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // no signal from our terminal
	cmd.WaitDelay = waitDelay
	return cmd
}

const (
	programDir = "/run/bin"      // the directory of the machine's programs
	waitDelay  = 5 * time.Second // limits the wait for processes that hold the output of an ended command
	// runTimeout limits a command that should end by itself. It is far longer than any takes on a busy machine.
	runTimeout = 5 * time.Minute
)

// give links programs into programDir, and skips the test if one is missing.
func (m *machine) give(t testing.TB, programs ...string) {
	t.Helper()
	for _, name := range programs {
		testkit.RequireTool(t, name)
		path, err := exec.LookPath(name)
		if err == nil {
			err = os.Symlink(path, m.path(filepath.Join(programDir, filepath.Base(name))))
		}
		testkit.Succeed(t, err)
	}
}

func (m *machine) run(cmd *exec.Cmd) (string, error) {
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := m.do(cmd.Start); err != nil {
		return "", fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	timer := time.AfterFunc(runTimeout, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	if err := cmd.Wait(); err != nil {
		return stdout.String(), fmt.Errorf("%s: %w: %s%s", strings.Join(cmd.Args, " "), err, stdout.String(), stderr.String())
	}
	return stdout.String(), nil
}

func (m *machine) mustRun(t testing.TB, program string, args ...string) string {
	t.Helper()
	return testkit.Must(m.run(m.command(program, args...)))(t)
}

// start starts a command on the machine, which ends with the test. If the test fails, the command's output is logged.
func (m *machine) start(t testing.TB, cmd *exec.Cmd) {
	t.Helper()
	log := testkit.Must(os.CreateTemp(m.path("/run"), "log-"))(t)
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	err := m.do(cmd.Start)
	testkit.Require(t, err == nil, "start %s: %v", cmd.Path, err)
	t.Cleanup(func() {
		_, _ = cmd.Process.Kill(), cmd.Wait()
		if text, _ := os.ReadFile(log.Name()); t.Failed() {
			t.Logf("%s printed: %s", cmd.Path, text)
		}
	})
}

// hasEnded reports whether a command has ended, without reaping it.
func hasEnded(cmd *exec.Cmd) bool {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PID, cmd.Process.Pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return err == nil && info.Signo != 0
}

func (m *machine) write(t testing.TB, name, text string) {
	t.Helper()
	path := m.path(name)
	testkit.Succeed(t, os.MkdirAll(filepath.Dir(path), 0o755))
	testkit.Succeed(t, os.WriteFile(path, []byte(text), 0o600))
}
