// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"mustang/internal/testkit"
)

// TestLinksBadInput has one line for each thing that can't be.
func TestLinksBadInput(t *testing.T) {
	testkit.RequireRoot(t)
	for _, test := range []struct {
		args    string
		code    int
		culprit string
	}{
		{"links --netns nobody", exitFailed, "/run/netns/nobody"},
		{"links --netns /etc/passwd", exitFailed, "/etc/passwd"},
		{"links --netns /proc/self/ns/uts", exitFailed, "/proc/self/ns/uts"},
		{"links --netns x --all", exitMisuse, "--all"},
		{"links --lab x --all", exitMisuse, "--lab"},
		{"links --lab x --netns y", exitMisuse, "--lab"},
		{"links --lab nothing", exitFailed, "nothing"},
		{"links -o yaml", exitMisuse, "yaml"},
		{"links pod-a", exitMisuse, "pod-a"},
		{"probe -o tree", exitMisuse, "tree"},
	} {
		code, stdout, stderr := command(t, nil, strings.Fields(test.args)...)
		if code != test.code || stdout != "" || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, test.culprit) {
			t.Errorf("%s: exit code %d, stdout %q, stderr %q", test.args, code, stdout, stderr)
		}
	}
}

// TestLinksNotRoot runs as a user who may not look into namespaces.
func TestLinksNotRoot(t *testing.T) {
	testkit.RequireRoot(t) // to become somebody else
	exe, err := exec.LookPath("mustang")
	if err != nil {
		t.Fatal(err)
	}
	const nobody = 65534
	for _, args := range []string{"links", "probe"} {
		file, err := os.Open(exe)
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("/proc/self/fd/3", args)
		cmd.Args[0] = "mustang" // as what the program knows itself
		cmd.ExtraFiles, cmd.Dir = []*os.File{file}, "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		out, err := cmd.CombinedOutput()
		_ = file.Close()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != exitFailed || string(out) != fmt.Sprintf("mustang: mustang %s needs root\n", args) {
			t.Errorf("%s: %v: %q", args, err, out)
		}
	}
}
