// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// TestTUNEnds ends the process in all ways: nothing is left.
func TestTUNEnds(t *testing.T) {
	hearHangups(t)
	ns := testkit.Namespace(t, "tun")
	before := testkit.Snapshot(t, ns)
	for _, sig := range []unix.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGKILL} {
		t.Run(sig.String(), func(t *testing.T) {
			p := startTUN(t, 1, "--echo --ifname left@"+ns.Name()+" --address "+tunAddresses4+" --address "+tunAddresses6)
			if _, err := rtnl.In(ns).Device("left"); err != nil {
				t.Fatal(err)
			}
			code := p.end(t, sig)
			if sig != unix.SIGKILL && code != exitDone {
				t.Errorf("exit code %d: %s", code, p.stderr.String())
			}
			testkit.Eventually(t, 5*time.Second, func() error {
				if after := testkit.Snapshot(t, ns); after != before {
					return fmt.Errorf("the namespace is another:\n%s\nbefore:\n%s", after, before)
				}
				return nil
			})
		})
	}
}

// hearHangups lets processes that the test starts end by a hangup, though nohup started the
// test itself.
func hearHangups(t *testing.T) {
	t.Helper()
	heard := make(chan os.Signal, 1)
	signal.Notify(heard, unix.SIGHUP)
	t.Cleanup(func() { signal.Stop(heard) })
}

// TestHangupIgnored starts a process as nohup does: a hangup stays ignored.
func TestHangupIgnored(t *testing.T) {
	ns := testkit.Namespace(t, "tun")
	signal.Ignore(unix.SIGHUP)
	defer signal.Reset(unix.SIGHUP)
	p := startTUN(t, 1, "--ifname left@"+ns.Name())
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, mask, _ := strings.Cut(string(status), "SigIgn:\t")
	mask, _, _ = strings.Cut(mask, "\n")
	ignored, err := strconv.ParseUint(mask, 16, 64)
	if err != nil || ignored&(1<<(unix.SIGHUP-1)) == 0 {
		t.Errorf("mask of ignored signals %q, %v: a hangup is not among them", mask, err)
	}
}

// TestTUNDeviceGone deletes the device of a process that runs.
func TestTUNDeviceGone(t *testing.T) {
	testkit.RequireTool(t, "ip")
	ns := testkit.Namespace(t, "tun")
	p := startTUN(t, 1, "--ifname left@"+ns.Name())
	remove := exec.Command("ip", "link", "delete", "left")
	if err := ns.Start(remove); err != nil {
		t.Fatal(err)
	}
	if err := remove.Wait(); err != nil {
		t.Fatal(err)
	}
	_ = p.cmd.Wait()
	lines := strings.Split(p.stderr.String(), "\n")
	if code := p.cmd.ProcessState.ExitCode(); code != exitFailed || len(lines) != 3 || !strings.Contains(lines[1], `"left"`) {
		t.Errorf("exit code %d, stderr %q", code, lines)
	}
}

// TestTUNBadInput gives flags that make no sense, or devices that can't be.
func TestTUNBadInput(t *testing.T) {
	ns := testkit.Namespace(t, "tun")
	root, before := testkit.RootSnapshot(t), testkit.Snapshot(t, ns)
	in := "@" + ns.Name()
	for _, test := range []struct {
		args    string
		code    int
		culprit string
	}{
		{"extra", exitMisuse, "extra"},
		{"--ifname a/b" + in, exitMisuse, "a/b"},
		{"--ifname " + in, exitMisuse, `""`},
		{"--ifname left@", exitMisuse, "left@"},
		{"--ifname sixteen-letters-" + in, exitMisuse, "sixteen-letters-"},
		{"--ifname a" + in + " --ifname b" + in, exitMisuse, "--ifname b"},
		{"--ifname a" + in + " --address 10.9.0.1", exitMisuse, "10.9.0.1"},
		{"--ifname a" + in + " --address 10.9.0.1/24@b", exitMisuse, "no --ifname b"},
		{"--ifname a" + in + " --address 224.0.0.1/4", exitMisuse, "224.0.0.1/4"},
		{"--ifname a" + in + " --address fd00::1/64 --mtu 1000", exitMisuse, "fd00::1/64"},
		{"--ifname a" + in + " --mtu 10", exitMisuse, "10"},
		{"--ifname a" + in + " --mtu 0", exitMisuse, "--mtu 0"},
		{"--ifname a" + in + " --tap --echo", exitMisuse, "--tap and --echo"},
		{"--ifname a" + in + " --tap --offload", exitMisuse, "--tap and --offload"},
		{"--switch --ifname a" + in, exitMisuse, "--switch"},
		{"--switch --ifname a" + in + " --ifname a" + in, exitMisuse, "twice"},
		{"--switch --echo --ifname a" + in + " --ifname b" + in, exitMisuse, "--echo"},
		{"--switch --ifname a" + in + " --ifname b" + in + " --address 10.9.0.1/24", exitMisuse, "10.9.0.1/24@IFNAME"},
		{"--switch --ifname a" + in + " --ifname a@elsewhere --address 10.9.0.1/24@a", exitMisuse, "10.9.0.1/24@IFNAME@NETNS"},
		{"--ifname a@nobody", exitFailed, "/run/netns/nobody"},
		{"--ifname a@/etc/passwd", exitFailed, "/etc/passwd"},
		{"--ifname lo" + in, exitFailed, `"lo"`},
		{"--switch --ifname a" + in + " --ifname lo" + in, exitFailed, `"lo"`},
	} {
		code, stdout, stderr := command(t, nil, append([]string{"tun"}, strings.Fields(test.args)...)...)
		lines := strings.Split(strings.TrimSuffix(stderr, "\n"), "\n")
		if code != test.code || len(lines) != 1 || !strings.Contains(lines[0], test.culprit) || stdout != "" {
			t.Errorf("%s: exit code %d, stdout %q, stderr %q; want %d and one line with %q", test.args, code, stdout, stderr, test.code, test.culprit)
		}
	}
	if after := testkit.Snapshot(t, ns); after != before {
		t.Errorf("the namespace is another:\n%s\nbefore:\n%s", after, before)
	}
	if after := testkit.RootSnapshot(t); after != root {
		t.Errorf("the root namespace is another:\n%s\nbefore:\n%s", after, root)
	}
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

// tunProcess is a mustang tun that runs.
type tunProcess struct {
	cmd            *exec.Cmd
	stdout, stderr output
}

// startTUN starts mustang tun in this namespace and waits until as many devices
// are ready. It is killed when the test is over.
func startTUN(t *testing.T, devices int, args string) *tunProcess {
	t.Helper()
	p := &tunProcess{cmd: exec.Command("mustang", append([]string{"tun"}, strings.Fields(args)...)...)}
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
		}
	})
	testkit.Eventually(t, 10*time.Second, func() error {
		if ready := strings.Count(p.stderr.String(), " ready\n"); ready != devices {
			return fmt.Errorf("%d devices are ready: %s", ready, p.stderr.String())
		}
		return nil
	})
	return p
}

// end ends the process by a signal.
func (p *tunProcess) end(t *testing.T, signal unix.Signal) (code int) {
	t.Helper()
	if err := p.cmd.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
	_ = p.cmd.Wait()
	return p.cmd.ProcessState.ExitCode()
}

// printed waits for a line that matches.
func (p *tunProcess) printed(t *testing.T, pattern string) {
	t.Helper()
	line := regexp.MustCompile(`(?m)^` + pattern + `$`)
	testkit.Eventually(t, 10*time.Second, func() error {
		if !line.MatchString(p.stdout.String()) {
			return fmt.Errorf("no line %q in:\n%s", line, p.stdout.String())
		}
		return nil
	})
}
