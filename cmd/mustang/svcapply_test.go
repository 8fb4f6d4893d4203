// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mustang/cmd/mustang/internal/cli"
	"mustang/cmd/mustang/internal/node"
	"mustang/internal/testkit"
)

// TestApplyIsInterrupted while it waits for standard input: it has changed nothing.
func TestApplyIsInterrupted(t *testing.T) {
	testkit.RequireRoot(t)
	env := map[string]string{cli.EnvBPFRoot: testkit.BPFFS(t) + "/mustang", envStateDir: t.TempDir(),
		node.EnvSaved: filepath.Join(t.TempDir(), "saved.json")}
	in, keepOpen := io.Pipe()
	defer keepOpen.Close()
	ctx, cancel := context.WithCancel(t.Context())
	var out, errs bytes.Buffer
	e := cli.Environment{Stdin: in, Stdout: &out, Stderr: &errs, Getenv: func(key string) string { return env[key] }}
	done := make(chan int, 1)
	go func() { done <- run(ctx, e, []string{"svc", "apply", "-f", "-"}) }()
	if _, err := io.WriteString(keepOpen, "schema: 1\n"); err != nil { // it reads
		t.Fatal(err)
	}
	cancel()
	select {
	case code := <-done:
		testkit.Check(t, code == exitFailed && errs.String() == "mustang: standard input: interrupted\n" && out.Len() <= 0,
			"exit code %d, %q, %q", code, out.String(), errs.String())
	case <-time.After(time.Minute):
		t.Fatal("it waits for standard input still")
	}
	if code, _, stderr := command(t, env, "svc", "restore"); code != exitFailed ||
		!strings.Contains(stderr, "saved.json") {
		t.Errorf("restore: exit code %d, %q", code, stderr)
	}
}
