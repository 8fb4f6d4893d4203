// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/load"
	"mustang/internal/testkit"
)

// TestParentKilled starts a parent with an agent, kills it with SIGKILL and expects the agent to end.
func TestParentKilled(t *testing.T) {
	testkit.RequireRoot(t)
	exe, err := os.Executable()
	testkit.Succeed(t, err)
	p := pair{ns: testkit.Namespace(t, "parent")}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), roleVariable+"=parent")
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	testkit.Succeed(t, err)
	defer func() { _ = stdin.Close() }()
	stdout, err := cmd.StdoutPipe()
	testkit.Succeed(t, err)
	testkit.Succeed(t, p.ns.Start(cmd))
	reaped := false
	defer func() {
		if !reaped {
			_, _ = cmd.Process.Kill(), cmd.Wait()
		}
	}()
	var pid int
	var address string
	if _, err := fmt.Fscan(stdout, &pid, &address); err != nil {
		t.Fatal(err)
	}
	// A connection is open at the agent, in the middle of a run.
	client := startAgent(t, agentOptions(p.ns))
	done := make(chan error, 1)
	go func() {
		_, err := client.Run(t.Context(), load.Spec{Workload: load.TCPStream, Target: netip.MustParseAddrPort(address),
			Duration: time.Hour})
		done <- err
	}()
	awaitTraffic(t, p)
	pidfd, err := unix.PidfdOpen(pid, 0) // not fooled by a PID used again
	testkit.Succeed(t, err)
	defer func() { _ = unix.Close(pidfd) }()
	testkit.Succeed(t, cmd.Process.Kill())
	_, reaped = cmd.Wait(), true
	polled := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	deadline := time.Now().Add(time.Minute)
	for {
		n, err := unix.Poll(polled, int(time.Until(deadline).Milliseconds()))
		if n == 1 {
			break
		}
		if !errors.Is(err, unix.EINTR) || time.Now().After(deadline) {
			_ = unix.Kill(pid, unix.SIGKILL)
			t.Fatalf("agent %d outlives its parent", pid)
		}
	}
	err = awaitError(t, done)
	testkit.Check(t, errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET), "error is %v", err)
}

// TestMainEnds drives Main in this process: it ends with its input and with its context, an open connection or not.
func TestMainEnds(t *testing.T) {
	t.Run("input", func(t *testing.T) {
		var out bytes.Buffer
		in := strings.NewReader(`{"id":1,"op":"listen","address":"127.0.0.1:0"}` + "\n" + `{"op":"ping"}` + "\n" +
			`{"id":2,"op":"dance"}` + "\n")
		testkit.Succeed(t, Main(t.Context(), []string{"--cpu=-1"}, in, &out))
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) != 3 || !strings.HasPrefix(lines[0], fmt.Sprintf(`{"id":0,"hello":{"protocol":%d,"version":"`,
			load.Protocol)) || !strings.Contains(lines[1], `"address":"127.0.0.1:`) ||
			!strings.Contains(lines[2], `unknown command \"dance\"`) {
			t.Errorf("replies:\n%s", out.String())
		}
	})
	t.Run("context", func(t *testing.T) {
		in, keep, err := os.Pipe()
		testkit.Succeed(t, err)
		defer func() { _, _ = in.Close(), keep.Close() }()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- Main(ctx, nil, in, new(bytes.Buffer)) }()
		cancel()
		err = awaitError(t, done)
		testkit.Check(t, errors.Is(err, context.Canceled), "error is %v", err)
	})
	t.Run("idle", func(t *testing.T) {
		in, keep, err := os.Pipe()
		testkit.Succeed(t, err)
		defer func() { _, _ = in.Close(), keep.Close() }()
		done := make(chan error, 1)
		go func() { done <- Main(t.Context(), []string{"--idle=50ms"}, in, new(bytes.Buffer)) }()
		err = awaitError(t, done)
		testkit.Check(t, strings.Contains(err.Error(), "no command for 50ms"), "error is %v", err)
	})
	t.Run("long command", func(t *testing.T) {
		in := strings.NewReader(strings.Repeat("x", load.MaxCall+1))
		err := Main(t.Context(), nil, in, new(bytes.Buffer))
		testkit.Check(t, err != nil, "it is read to its end")
	})
	t.Run("arguments", func(t *testing.T) {
		for _, args := range [][]string{{"--no-such"}, {"extra"}} {
			err := Main(t.Context(), args, strings.NewReader(""), new(bytes.Buffer))
			testkit.Check(t, err != nil, "arguments %q taken", args)
		}
	})
}
