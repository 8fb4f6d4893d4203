// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"mustang/internal/testkit"
)

// TestNotRoot runs commands that need root as a user who is not.
func TestNotRoot(t *testing.T) {
	testkit.RequireRoot(t) // to become somebody else
	exe, err := exec.LookPath("mustang")
	if err != nil {
		t.Fatal(err)
	}
	const nobody = 65534
	for _, args := range []string{
		"svc ls", "svc add --service=10.96.0.100:1 --backend=192.168.10.10:1", "ep ls",
		"ep add --netns=/proc/self/ns/net", "lab ls", "lab up pod-links", "bench pod-links",
		"bench --vm pod-links", "links", "probe", "tun", "socket ls",
	} {
		cmd := exec.Command("/proc/self/fd/3", strings.Fields(args)...)
		cmd.Args[0] = "mustang"
		file, err := os.Open(exe)
		if err != nil {
			t.Fatal(err)
		}
		cmd.ExtraFiles = []*os.File{file}
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		out, err := cmd.CombinedOutput()
		_ = file.Close()
		if code := cmd.ProcessState.ExitCode(); code != exitFailed || err == nil {
			t.Errorf("%s: exit code %d, want %d", args, code, exitFailed)
		}
		if strings.Count(string(out), "\n") != 1 || !strings.Contains(string(out), "needs root") {
			t.Errorf("%s: %q, want one line that says that it needs root", args, out)
		}
	}
}
