// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/nl"
	"mustang/internal/testkit"
	"mustang/internal/traffic"
)

// serveProcess is a mustang bench serve that runs.
type serveProcess struct {
	cmd    *exec.Cmd
	stderr output
}

// startServe starts mustang bench serve in a namespace and waits until it listens.
func startServe(t *testing.T, ns *nl.Namespace, args string) *serveProcess {
	t.Helper()
	p := &serveProcess{cmd: exec.Command("mustang", append([]string{"bench", "serve"}, strings.Fields(args)...)...)}
	p.cmd.Env = append(os.Environ(), envStateDir+"="+filepath.Join(t.TempDir(), "state"))
	p.cmd.Stderr = &p.stderr
	if err := ns.Start(p.cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
		}
	})
	p.await(t, "listening on")
	return p
}

// await waits until the process has printed a text.
func (p *serveProcess) await(t *testing.T, text string) {
	t.Helper()
	testkit.Eventually(t, 10*time.Second, func() error {
		if !strings.Contains(p.stderr.String(), text) {
			return fmt.Errorf("no %q in %q", text, p.stderr.String())
		}
		return nil
	})
}

// interrupt ends the process as Ctrl-C does, which must not take long.
func (p *serveProcess) interrupt(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(unix.SIGINT); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- p.cmd.Wait() }()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("%v: %s", err, p.stderr.String())
		}
	case <-time.After(5 * time.Second):
		t.Fatal("it goes on after SIGINT")
	}
}

// children returns a process's children.
func children(t *testing.T, pid int) []string {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, file := range files {
		data, _ := os.ReadFile(file) // a thread may have ended
		all = append(all, strings.Fields(string(data))...)
	}
	return all
}

// TestBenchServe runs load against the command with each kind of token, and ends
// it in a session.
func TestBenchServe(t *testing.T) {
	testkit.RequireRoot(t)
	ns := testkit.Namespace(t, "serve")
	path := filepath.Join(t.TempDir(), "token")
	for _, args := range []string{"--write-token " + path, "--token-file " + path + " --cpu 0", ""} {
		p := startServe(t, ns, "--listen 127.0.0.1 "+args)
		var token []byte
		if args == "" {
			p.await(t, "umask 077")
			token = []byte(regexp.MustCompile(`this once: (\w+)`).FindStringSubmatch(p.stderr.String())[1])
		} else {
			var err error
			if token, err = traffic.ReadToken(path); err != nil {
				t.Fatal(err)
			}
			if strings.Contains(p.stderr.String(), string(token)) {
				t.Errorf("%s: the token is printed: %s", args, p.stderr.String())
			}
		}
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.cmd.Process.Pid))
		if err != nil || strings.Contains(string(line), string(token)) {
			t.Errorf("the command line is %q, %v", line, err)
		}
		var peer *traffic.Peer
		if err := ns.Do(func() (err error) {
			peer, err = traffic.DialPeer(t.Context(), netip.MustParseAddrPort("127.0.0.1:5202"), token)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if err := peer.Listen(t.Context(), netip.AddrPort{}); err != nil {
			t.Fatal(err)
		}
		client, err := traffic.StartAgent(traffic.AgentOptions{Exe: p.cmd.Path, Start: ns.Start, CPU: -1})
		if err != nil {
			t.Fatal(err)
		}
		m, err := client.Run(t.Context(), traffic.Spec{Workload: traffic.TCPStream, Target: peer.Address(), Limit: 100_000, Flows: 2})
		if err != nil || m.Count != 100_000 {
			t.Errorf("%d bytes, %v", m.Count, err)
		}
		if err := client.Close(); err != nil {
			t.Error(err)
		}
		agents := children(t, p.cmd.Process.Pid)
		if len(agents) != 1 {
			t.Errorf("processes of the session: %v", agents)
		}
		p.interrupt(t)
		for _, pid := range agents {
			if _, err := os.Stat("/proc/" + pid); err == nil {
				t.Errorf("process %s is left", pid)
			}
		}
		if _, err := peer.Last(t.Context()); err == nil || !strings.Contains(err.Error(), "stopped") {
			t.Errorf("the peer hears %v", err)
		}
		_ = peer.Close()
	}
}

// TestBenchServeKilled kills the command in a session: its agent ends with it.
func TestBenchServeKilled(t *testing.T) {
	testkit.RequireRoot(t)
	ns := testkit.Namespace(t, "serve")
	path := filepath.Join(t.TempDir(), "token")
	p := startServe(t, ns, "--listen 127.0.0.1:7000 --write-token "+path)
	token, err := traffic.ReadToken(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := ns.Do(func() error {
		peer, err := traffic.DialPeer(t.Context(), netip.MustParseAddrPort("127.0.0.1:7000"), token)
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = peer.Close() })
		return peer.Listen(t.Context(), netip.AddrPort{})
	}); err != nil {
		t.Fatal(err)
	}
	agents := children(t, p.cmd.Process.Pid)
	if len(agents) != 1 {
		t.Fatalf("processes of the session: %v", agents)
	}
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = p.cmd.Wait()
	testkit.Eventually(t, 5*time.Second, func() error {
		state, err := os.ReadFile("/proc/" + agents[0] + "/stat")
		if err == nil && !strings.Contains(string(state), ") Z ") {
			return fmt.Errorf("the agent goes on: %s", state)
		}
		return nil
	})
}

// TestBenchServeBadInput gives the command what it must refuse in one line.
func TestBenchServeBadInput(t *testing.T) {
	testkit.RequireRoot(t)
	dir := t.TempDir()
	secret := "open-to-everybody-here"
	open, taken := filepath.Join(dir, "open"), filepath.Join(dir, "taken")
	for path, mode := range map[string]os.FileMode{open: 0o644, taken: 0o600} {
		if err := os.WriteFile(path, []byte(secret), mode); err != nil {
			t.Fatal(err)
		}
	}
	unused := filepath.Join(dir, "unused")
	for _, test := range []struct {
		args    string
		code    int
		culprit string
	}{
		{"", 2, "--listen"},
		{"--listen nobody", 2, "nobody"},
		{"--listen 10.0.0.1:0", 2, "port 0"},
		{"--listen 10.0.0.1:99999", 2, "99999"},
		{"--listen fe80::1%eth0", 2, "zone"},
		{"--listen 224.0.0.1", 2, "multicast"},
		{"--listen 127.0.0.1 extra", 2, "extra"},
		{"--listen 127.0.0.1 --cpu 9999", 2, "9999"},
		{"--listen 127.0.0.1 --cpu -2", 2, "-2"},
		{"--listen 127.0.0.1 --token-file a --write-token b", 2, "exclude"},
		{"--listen 127.0.0.1 --token-file /nonexistent", 1, "/nonexistent"},
		{"--listen 127.0.0.1 --token-file " + open, 1, "chmod 600"},
		{"--listen 127.0.0.1 --write-token " + taken, 1, taken},
		{"--listen 192.0.2.1 --write-token " + unused, 1, "192.0.2.1"},
	} {
		t.Run(test.args, func(t *testing.T) {
			env := map[string]string{envStateDir: filepath.Join(dir, "state")}
			code, stdout, stderr := command(t, env, append([]string{"bench", "serve"}, strings.Fields(test.args)...)...)
			if code != test.code || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, test.culprit) || stdout != "" {
				t.Errorf("exit code %d, want %d; stderr %q, want one line with %q; stdout %q", code, test.code, stderr, test.culprit, stdout)
			}
			if strings.Contains(stderr, secret) {
				t.Errorf("the token is in %q", stderr)
			}
		})
	}
	if _, err := os.Stat(unused); err == nil {
		t.Error("a token of a server that never listened is left")
	}
}
