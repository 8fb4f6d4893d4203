// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"mustang/internal/bench"
	"mustang/internal/lab"
	"mustang/internal/nl"
	"mustang/internal/result"
	"mustang/internal/testkit"
)

// peers are two hosts of a lab.
func peers(t *testing.T) (a, b *nl.Namespace) {
	t.Helper()
	l, err := lab.Store{Dir: filepath.Join(t.TempDir(), "state")}.Up(t.Context(), lab.Options{
		Name: "peers-" + strings.ToLower(filepath.Base(t.TempDir())), Topology: lab.TopologyTwoHosts, Link: lab.LinkHost,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	for place, ns := range map[string]**nl.Namespace{lab.HostA: &a, lab.HostB: &b} {
		if *ns, err = l.Namespace(place); err != nil {
			t.Fatal(err)
		}
	}
	return a, b
}

// TestBenchPeer has one machine serve, and another measure the way to it.
func TestBenchPeer(t *testing.T) {
	testkit.RequireRoot(t)
	a, b := peers(t)
	token := filepath.Join(t.TempDir(), "token")
	server := startServe(t, a, "--listen 10.0.0.1 --write-token "+token)
	run := func(args ...string) (*result.File, string, error) {
		out := filepath.Join(t.TempDir(), "out")
		cmd := exec.Command(server.cmd.Path, append([]string{"bench", "latency", "--peer", "10.0.0.1", "--token-file", token,
			"--rounds", "2", "--duration", "20ms", "--out", out}, args...)...)
		cmd.Env = append(os.Environ(), envStateDir+"="+filepath.Join(t.TempDir(), "state"))
		var text strings.Builder
		cmd.Stdout, cmd.Stderr = &text, &text
		if err := b.Start(cmd); err != nil {
			t.Fatal(err)
		}
		err := cmd.Wait()
		file, readErr := result.Read(filepath.Join(out, bench.ResultsName))
		if readErr != nil {
			return nil, text.String(), err
		}
		return &file, text.String(), err
	}
	file, text, err := run()
	if err != nil || file == nil {
		t.Fatalf("bench --peer: %v\n%s", err, text)
	}
	for _, row := range file.Rows {
		if fromHere := strings.HasPrefix(row.ID, "host"); fromHere != (row.Status == result.StatusOK) ||
			!fromHere && (row.Status != result.StatusSkipped || !strings.Contains(row.Reason, "with a peer")) {
			t.Errorf("%s: %s %s", row.ID, row.Status, row.Reason)
		}
		if row.Status == result.StatusOK && !strings.HasPrefix(row.Evidence.Server.Local, "10.0.0.1:") {
			t.Errorf("%s: the server was reached at %s", row.ID, row.Evidence.Server.Local)
		}
	}
	if err := os.WriteFile(token, []byte("another secret of 24 bytes"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, text, err := run(); err == nil || strings.Count(strings.TrimSpace(text), "\n") > 0 || !strings.Contains(text, "token") {
		t.Errorf("with another token: %v, %s", err, text)
	}
}
