// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/testkit"
)

// hearHangups lets processes that the test starts end by a hangup, though nohup started the test itself.
func hearHangups(t *testing.T) {
	t.Helper()
	heard := make(chan os.Signal, 1)
	signal.Notify(heard, unix.SIGHUP)
	t.Cleanup(func() { signal.Stop(heard) })
}

// TestTUNEnds ends mustang tun by each signal: nothing is left. A process that nohup has started ignores a hangup.
func TestTUNEnds(t *testing.T) {
	ns := testkit.Namespace(t, "tun")
	before := testkit.Snapshot(t, ns)
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGHUP, unix.SIGKILL} {
		t.Run(sig.String(), func(t *testing.T) {
			hearHangups(t)
			cmd := startTUN(t, "left@"+ns.Name())
			_ = cmd.Process.Signal(sig)
			_ = cmd.Wait()
			code := cmd.ProcessState.ExitCode()
			testkit.Check(t, sig == unix.SIGKILL || code == exitDone, "exit code %d: %s", code, cmd.Stderr)
			testkit.Eventually(t, 10*time.Second, func() error {
				if after := testkit.Snapshot(t, ns); after != before {
					return fmt.Errorf("the namespace is another:\n%s\nbefore:\n%s", after, before)
				}
				return nil
			})
		})
	}
	signal.Ignore(unix.SIGHUP)
	defer signal.Reset(unix.SIGHUP)
	cmd := startTUN(t, "left@"+ns.Name())
	status := testkit.Must(os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid)))(t)
	_, mask, _ := strings.Cut(string(status), "SigIgn:\t")
	mask, _, _ = strings.Cut(mask, "\n")
	ignored, err := strconv.ParseUint(mask, 16, 64)
	testkit.Check(t, err == nil && ignored&(1<<(unix.SIGHUP-1)) != 0,
		"mask of ignored signals %q, %v: a hangup is not among them", mask, err)
}

// startTUN starts mustang tun and waits until its device is ready. It is killed when the test is over.
func startTUN(t *testing.T, ifname string) *exec.Cmd {
	t.Helper()
	var stderr output
	cmd := exec.Command("mustang", "tun", "--echo", "--ifname", ifname, "--address", "10.9.0.1/24", "--address",
		"fd00:9::1/64")
	cmd.Stderr = &stderr
	testkit.Succeed(t, cmd.Start())
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	testkit.Eventually(t, 10*time.Second, func() error {
		if !strings.HasSuffix(stderr.String(), " ready\n") {
			return fmt.Errorf("the device is not ready: %s", stderr.String())
		}
		return nil
	})
	return cmd
}

// output collects the output of a running process.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}
