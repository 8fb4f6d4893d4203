// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/testkit"
)

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
