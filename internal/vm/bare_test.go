// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bytes"
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	"mustang/internal/testkit"
)

// bareProgram is a program for bare guests.
const bareProgram = "./testdata/guest"

// bareOptions returns options for a bare guest that runs the program in testdata.
func bareOptions(t *testing.T, arguments ...string) Options {
	t.Helper()
	testkit.RequireRoot(t)
	testkit.RequireTool(t, qemu)
	kernel := testkit.Must(fetchOnce())(t)
	return Options{
		Kernel: kernel, Init: buildOnce(t, bareProgram), Bare: true, Command: append([]string{Program}, arguments...),
		MemoryMB: 128, Timeout: time.Minute,
	}
}

// TestInput sends a bare guest's command more input than any buffer holds, and the end of it.
func TestInput(t *testing.T) {
	t.Parallel()
	o := bareOptions(t)
	sent := bytes.Repeat([]byte("mustang\n"), 1<<17)
	var stdout, stderr bytes.Buffer
	o.Stdin, o.Stdout, o.Stderr = bytes.NewReader(sent), &stdout, &stderr
	code, err := Run(t.Context(), o)
	testkit.Check(t, err == nil && code == 3 && bytes.Equal(stdout.Bytes(), sent) && stderr.Len() <= 0,
		"exit code %d, %v; %d bytes of %d came back; stderr %q", code, err, stdout.Len(), len(sent), &stderr)
}

// TestNotBooted gives a guest no time to boot, and then runs a program that does not exist.
func TestNotBooted(t *testing.T) {
	t.Parallel()
	o := bareOptions(t)
	o.BootTimeout = time.Millisecond
	_, err := Run(t.Context(), o)
	var guest *GuestError
	if !errors.As(err, &guest) || !strings.Contains(err.Error(), "not booted after 1ms") ||
		strings.Contains(err.Error(), "\n") {
		t.Errorf("error %v", err)
	}
	var stderr bytes.Buffer
	o.BootTimeout, o.Command, o.Stderr = 0, []string{"no-such-program"}, &stderr
	if code, err := Run(t.Context(), o); err != nil || code != 127 ||
		!strings.Contains(stderr.String(), "no-such-program") {
		t.Errorf("exit code %d, %v, stderr %q", code, err, &stderr)
	}
}

// TestStatic checks that this package does not need C. With a C compiler, programs with package net are not static,
// and can't be a guest's Init.
func TestStatic(t *testing.T) {
	out := testkit.Must(exec.CommandContext(t.Context(), "go", "list", "-deps", "mustang/internal/vm").Output())(t)
	for _, name := range strings.Fields(string(out)) {
		testkit.Check(t, name != "net" && name != "os/user", "vm needs package %s", name)
	}
}
