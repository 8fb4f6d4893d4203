// SPDX-License-Identifier: Apache-2.0

package load_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"mustang/internal/load"
	"mustang/internal/testkit"
)

// children counts this process's children, dead or alive.
func children(t *testing.T) int {
	t.Helper()
	var all []byte
	tasks, err := os.ReadDir("/proc/self/task")
	testkit.Succeed(t, err)
	for _, task := range tasks {
		data, err := os.ReadFile("/proc/self/task/" + task.Name() + "/children")
		if err == nil {
			all = append(all, data...)
		}
	}
	return len(strings.Fields(string(all)))
}

// TestStartFails checks that no process is left when load.StartAgent gives up.
func TestStartFails(t *testing.T) {
	ended, end := context.WithCancel(t.Context())
	end()
	_, err := load.StartAgent(ended, agentOptions())
	testkit.Check(t, errors.Is(err, context.Canceled), "with an ended context: %v", err)
	before := children(t)
	refuse := errors.New("namespace is gone")
	for name, tt := range map[string]struct {
		change func(*load.AgentOptions)
		want   string
	}{
		"no such program": {func(o *load.AgentOptions) { o.Exe = "/no/such/program" }, "no such file"},
		"never ready": {func(o *load.AgentOptions) {
			o.Env, o.Timeout = []string{roleVariable + "=mute"}, 200*time.Millisecond
		}, "not ready after 200ms"},
		"prints text": {func(o *load.AgentOptions) { o.Env = []string{roleVariable + "=babbler"} },
			`invalid message "Welcome to this machine"`},
		"prints one line": {func(o *load.AgentOptions) { o.Env = []string{roleVariable + "=endless"} },
			"message without an end"},
		"is an older one": {func(o *load.AgentOptions) { o.Env = []string{roleVariable + "=old"} }, "did not say hello"},
		"is a newer one": {func(o *load.AgentOptions) { o.Env = []string{roleVariable + "=newer"} },
			"version 99 of the load protocol (mustang v9.9.9)"},
		"complains": {func(o *load.AgentOptions) { o.Env = []string{roleVariable + "=complaining"} },
			"exit status 255): no such host?[31m; and no route"},
		"no such shell": {func(o *load.AgentOptions) { o.Shell = []string{"/no/such/shell"} }, "no such file"},
		"not in that shell": {func(o *load.AgentOptions) { o.Shell, o.Exe = []string{"env", "--"}, "no-such-program" },
			"No such file"},
		"ends": {func(o *load.AgentOptions) { o.Exe = "/bin/false" }, "exit status 1"},
		"hook fails first": {func(o *load.AgentOptions) {
			o.Start = func(*exec.Cmd) error { return refuse }
		}, refuse.Error()},
		"hook fails half way": {func(o *load.AgentOptions) {
			o.Start = func(cmd *exec.Cmd) error { return errors.Join(cmd.Start(), refuse) }
		}, refuse.Error()},
		"no such CPU": {func(o *load.AgentOptions) { o.CPU = 1023 }, "pin to CPU 1023"},
	} {
		o := agentOptions()
		tt.change(&o)
		a, err := load.StartAgent(t.Context(), o)
		if err == nil {
			_ = a.Close()
			t.Errorf("%s: started", name)
			continue
		}
		testkit.Check(t, strings.Contains(err.Error(), tt.want), "%s: error %q, want %q in it", name, err, tt.want)
		now := children(t)
		testkit.Check(t, now == before, "%s: %d children, before %d", name, now, before)
	}
}

// TestClose checks that an agent is gone and reaped, and the error of calls afterwards.
func TestClose(t *testing.T) {
	before := children(t)
	a, err := load.StartAgent(t.Context(), agentOptions())
	testkit.Succeed(t, err)
	now := children(t)
	testkit.Check(t, now == before+1, "%d children with an agent, before %d", now, before)
	for range 2 {
		err := a.Close()
		testkit.Check(t, err == nil, "%v", err)
	}
	now = children(t)
	testkit.Check(t, now == before, "%d children, before %d", now, before)
	err = a.Listen(t.Context(), netip.MustParseAddrPort("127.0.0.1:0"))
	testkit.Check(t, err != nil, "a closed agent listens")
}

// TestShell starts an agent with another program, as ssh would: it runs there, and ends by itself when it is closed.
func TestShell(t *testing.T) {
	exe, err := os.Executable()
	testkit.Succeed(t, err)
	o := load.AgentOptions{Shell: []string{"env", "GORACE=atexit_sleep_ms=0", roleVariable + "=agent"}, Exe: exe,
		Args: []string{}, CPU: -1}
	a, err := load.StartAgent(t.Context(), o)
	testkit.Succeed(t, err)
	testkit.Succeed(t, a.Listen(t.Context(), netip.MustParseAddrPort("127.0.0.1:0")))
	err = a.Err()
	testkit.Check(t, err == nil, "it has ended: %v", err)
	testkit.Succeed(t, a.Close())
	state := a.ProcessState()
	testkit.Check(t, state.ExitCode() == 0, "it was ended: %v", state)
	err = a.Err()
	testkit.Check(t, err != nil, "it has not ended")
}

// TestShellStopsReading checks that an agent that runs on without its input is killed.
func TestShellStopsReading(t *testing.T) {
	hello := fmt.Sprintf(`{"hello":{"protocol":%d}}`, load.Protocol)
	o := load.AgentOptions{Shell: []string{"sh", "-c", "echo '" + hello + "'; exec sleep 3600 0<&-"}, CPU: -1}
	a, err := load.StartAgent(t.Context(), o)
	testkit.Succeed(t, err)
	testkit.Eventually(t, 30*time.Second, func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if err := a.Ping(ctx); a.Err() == nil {
			return fmt.Errorf("it runs: %w", err)
		}
		return nil
	})
	err = a.Close()
	testkit.Check(t, err == nil, "%v", err)
}

// TestSilentAgent checks that an agent that sends only its hello is given up and ended, whether its output stays
// open or not.
func TestSilentAgent(t *testing.T) {
	before := children(t)
	listen := func(a *load.Agent) error { return a.Listen(t.Context(), netip.MustParseAddrPort("127.0.0.1:0")) }
	to := load.Spec{Workload: load.TCPRR, Target: netip.MustParseAddrPort("127.0.0.1:1"), Duration: time.Millisecond}
	for name, tt := range map[string]struct {
		script  string
		timeout time.Duration
		call    func(*load.Agent) error
		want    string
	}{
		"output open":   {"exec sleep 3600", 500 * time.Millisecond, listen, "no answer after 500ms"},
		"output closed": {"exec sleep 3600 >&-", time.Hour, listen, "ended (signal: killed)"},
		"run": {"exec sleep 3600", 500 * time.Millisecond, func(a *load.Agent) error {
			spec := to
			spec.Stall = 10 * time.Millisecond
			_, err := a.Run(t.Context(), spec)
			return err
		}, "open: no answer after 1.5s"},
		"open": {"exec sleep 3600", 500 * time.Millisecond, func(a *load.Agent) error {
			_, err := a.Open(t.Context(), to)
			return err
		}, "open: no answer after 1.5s"},
		"slices": {"exec sleep 3600", 500 * time.Millisecond, func(a *load.Agent) error {
			_, err := a.Slices(t.Context(), []load.Slice{{Lead: 6 * time.Millisecond, Duration: 4 * time.Millisecond},
				{Lead: -1, Duration: 10 * time.Millisecond}})
			return err
		}, "slices: no answer after 2.1s"},
		"shut": {"exec sleep 3600", 500 * time.Millisecond, func(a *load.Agent) error {
			_, err := a.Shut(t.Context(), 1)
			return err
		}, "shut: no answer after 1.5s"},
	} {
		hello := fmt.Sprintf(`{"id":0,"hello":{"protocol":%d}}`, load.Protocol)
		a, err := load.StartAgent(t.Context(), load.AgentOptions{
			Shell: []string{"sh", "-c", "echo '" + hello + "'; " + tt.script}, CPU: -1, Timeout: tt.timeout,
		})
		testkit.Succeed(t, err)
		if err := tt.call(a); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want %q in it", name, err, tt.want)
		}
		_, cause, _ := strings.Cut(tt.want, ": ")
		if err := a.Ping(t.Context()); err == nil || !strings.Contains(err.Error(), cause) {
			t.Errorf("%s: the next call says %v, want %q in it", name, err, cause)
		}
		err = a.Close()
		testkit.Check(t, err == nil, "%v", err)
		now := children(t)
		testkit.Check(t, now == before, "%s: %d children, before %d", name, now, before)
	}
}
