// SPDX-License-Identifier: Apache-2.0

package load

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

	"mustang/internal/testkit"
)

// children counts this process's children, dead or alive.
func children(t *testing.T) int {
	t.Helper()
	var all []byte
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		data, err := os.ReadFile("/proc/self/task/" + task.Name() + "/children")
		if err == nil {
			all = append(all, data...)
		}
	}
	return len(strings.Fields(string(all)))
}

// TestParentKilled starts a parent with an agent, kills it with SIGKILL and
// expects the agent to end.
func TestParentKilled(t *testing.T) {
	testkit.RequireRoot(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := pair{ns: testkit.Namespace(t, "parent")}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), roleVariable+"=parent")
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stdin.Close() }()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.ns.Start(cmd); err != nil {
		t.Fatal(err)
	}
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
		_, err := client.Run(t.Context(), Spec{Workload: TCPStream, Target: netip.MustParseAddrPort(address), Duration: time.Hour})
		done <- err
	}()
	awaitTraffic(t, p)
	pidfd, err := unix.PidfdOpen(pid, 0) // not fooled by a PID used again
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(pidfd) }()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
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
	if err := awaitError(t, done); !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("error is %v", err)
	}
}

// TestStartFails checks that no process is left when StartAgent gives up.
func TestStartFails(t *testing.T) {
	ended, end := context.WithCancel(t.Context())
	end()
	if _, err := StartAgent(ended, agentOptions(nil)); !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %v", err)
	}
	before := children(t)
	refuse := errors.New("namespace is gone")
	for name, tt := range map[string]struct {
		change func(*AgentOptions)
		want   string
	}{
		"no such program": {func(o *AgentOptions) { o.Exe = "/no/such/program" }, "no such file"},
		"never ready": {func(o *AgentOptions) {
			o.Env, o.Timeout = []string{roleVariable + "=mute"}, 200*time.Millisecond
		}, "not ready after 200ms"},
		"prints text":       {func(o *AgentOptions) { o.Env = []string{roleVariable + "=babbler"} }, `invalid message "Welcome to this machine"`},
		"prints one line":   {func(o *AgentOptions) { o.Env = []string{roleVariable + "=endless"} }, "message without an end"},
		"is an older one":   {func(o *AgentOptions) { o.Env = []string{roleVariable + "=old"} }, "did not say hello"},
		"is a newer one":    {func(o *AgentOptions) { o.Env = []string{roleVariable + "=newer"} }, "version 99 of the load protocol (mustang v9.9.9)"},
		"complains":         {func(o *AgentOptions) { o.Env = []string{roleVariable + "=complaining"} }, "exit status 255): no such host?[31m; and no route"},
		"no such shell":     {func(o *AgentOptions) { o.Shell = []string{"/no/such/shell"} }, "no such file"},
		"not in that shell": {func(o *AgentOptions) { o.Shell, o.Exe = []string{"env", "--"}, "no-such-program" }, "No such file"},
		"ends":              {func(o *AgentOptions) { o.Exe = "/bin/false" }, "exit status 1"},
		"hook fails first": {func(o *AgentOptions) {
			o.Start = func(*exec.Cmd) error { return refuse }
		}, refuse.Error()},
		"hook fails half way": {func(o *AgentOptions) {
			o.Start = func(cmd *exec.Cmd) error { return errors.Join(cmd.Start(), refuse) }
		}, refuse.Error()},
		"no such CPU": {func(o *AgentOptions) { o.CPU = 1023 }, "pin to CPU 1023"},
	} {
		o := agentOptions(nil)
		tt.change(&o)
		a, err := StartAgent(t.Context(), o)
		if err == nil {
			_ = a.Close()
			t.Errorf("%s: started", name)
			continue
		}
		if !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %q, want %q in it", name, err, tt.want)
		}
		if now := children(t); now != before {
			t.Errorf("%s: %d children, before %d", name, now, before)
		}
	}
}

// TestClose checks that an agent is gone and reaped, and says so afterwards.
func TestClose(t *testing.T) {
	before := children(t)
	a, err := StartAgent(t.Context(), agentOptions(nil))
	if err != nil {
		t.Fatal(err)
	}
	if now := children(t); now != before+1 {
		t.Errorf("%d children with an agent, before %d", now, before)
	}
	for range 2 {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	}
	if now := children(t); now != before {
		t.Errorf("%d children, before %d", now, before)
	}
	if err := a.Listen(t.Context(), netip.MustParseAddrPort("127.0.0.1:0")); err == nil {
		t.Error("a closed agent listens")
	}
}

// TestMainEnds drives Main in this process: it ends with its input and with
// its context, an open connection or not.
func TestMainEnds(t *testing.T) {
	t.Run("input", func(t *testing.T) {
		var out bytes.Buffer
		in := strings.NewReader(`{"id":1,"op":"listen","address":"127.0.0.1:0"}` + "\n" + `{"op":"ping"}` + "\n" + `{"id":2,"op":"dance"}` + "\n")
		if err := Main(t.Context(), []string{"--cpu=-1"}, in, &out); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) != 3 || !strings.HasPrefix(lines[0], `{"id":0,"hello":{"protocol":1,"version":"`) || !strings.Contains(lines[1], `"address":"127.0.0.1:`) ||
			!strings.Contains(lines[2], `unknown command \"dance\"`) {
			t.Errorf("replies:\n%s", out.String())
		}
	})
	t.Run("context", func(t *testing.T) {
		in, keep, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _, _ = in.Close(), keep.Close() }()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- Main(ctx, nil, in, new(bytes.Buffer)) }()
		cancel()
		if err := awaitError(t, done); !errors.Is(err, context.Canceled) {
			t.Errorf("error is %v", err)
		}
	})
	t.Run("idle", func(t *testing.T) {
		in, keep, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _, _ = in.Close(), keep.Close() }()
		done := make(chan error, 1)
		go func() { done <- Main(t.Context(), []string{"--idle=50ms"}, in, new(bytes.Buffer)) }()
		if err := awaitError(t, done); !strings.Contains(err.Error(), "no command for 50ms") {
			t.Errorf("error is %v", err)
		}
	})
	t.Run("long command", func(t *testing.T) {
		in := strings.NewReader(strings.Repeat("x", maxCommand+1))
		if err := Main(t.Context(), nil, in, new(bytes.Buffer)); err == nil {
			t.Error("it is read to its end")
		}
	})
	t.Run("arguments", func(t *testing.T) {
		for _, args := range [][]string{{"--no-such"}, {"extra"}} {
			if err := Main(t.Context(), args, strings.NewReader(""), new(bytes.Buffer)); err == nil {
				t.Errorf("arguments %q taken", args)
			}
		}
	})
}

// TestNamespace checks that the start hook decides where an agent's sockets
// are: what listens in one namespace cannot be reached from another.
func TestNamespace(t *testing.T) {
	p := newPair(t, "127.0.0.1")
	other := testkit.Namespace(t, "other")
	stranger := startAgent(t, agentOptions(other))
	if _, err := stranger.Run(t.Context(), p.spec(TCPRR)); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("error is %v", err)
	}
}

// TestShell starts an agent with another program, as ssh would: it runs there, and ends
// by itself when it is closed.
func TestShell(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	o := AgentOptions{Shell: []string{"env", roleVariable + "=agent"}, Exe: exe, Args: []string{}, CPU: -1}
	a, err := StartAgent(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Listen(t.Context(), netip.MustParseAddrPort("127.0.0.1:0")); err != nil {
		t.Fatal(err)
	}
	if err := a.Err(); err != nil {
		t.Errorf("it has ended: %v", err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if state := a.cmd.ProcessState; state.ExitCode() != 0 {
		t.Errorf("it was ended: %v", state)
	}
	if err := a.Err(); err == nil {
		t.Error("it has not ended")
	}
}

// TestShellStopsReading checks that an agent that runs on without its input is killed.
func TestShellStopsReading(t *testing.T) {
	hello := fmt.Sprintf(`{"hello":{"protocol":%d}}`, protocolVersion)
	o := AgentOptions{Shell: []string{"sh", "-c", "echo '" + hello + "'; exec sleep 3600 0<&-"}, CPU: -1}
	a, err := StartAgent(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, 30*time.Second, func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := a.Last(ctx); a.Err() == nil {
			return fmt.Errorf("it runs: %w", err)
		}
		return nil
	})
	if err := a.Close(); err != nil {
		t.Error(err)
	}
}

// TestSilentAgent checks that an agent that says hello and then nothing is given up and ended, whether its output stays
// open or not.
func TestSilentAgent(t *testing.T) {
	before := children(t)
	for name, tt := range map[string]struct {
		script  string
		timeout time.Duration
		want    string
	}{
		"output open":   {"exec sleep 3600", 500 * time.Millisecond, "no answer after 500ms"},
		"output closed": {"exec sleep 3600 >&-", time.Hour, "ended (signal: killed)"},
	} {
		hello := fmt.Sprintf(`{"id":0,"hello":{"protocol":%d}}`, protocolVersion)
		a, err := StartAgent(t.Context(), AgentOptions{
			Shell: []string{"sh", "-c", "echo '" + hello + "'; " + tt.script}, CPU: -1, Timeout: tt.timeout,
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Listen(t.Context(), netip.MustParseAddrPort("127.0.0.1:0")); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want %q in it", name, err, tt.want)
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		if now := children(t); now != before {
			t.Errorf("%s: %d children, before %d", name, now, before)
		}
	}
}
