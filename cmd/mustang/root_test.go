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
	exe := testkit.Must(exec.LookPath("mustang"))(t)
	const nobody = 65534
	for _, args := range []string{
		"svc ls", "svc add --service=10.96.0.100:1 --backend=192.168.10.10:1", "ep ls",
		"ep add --netns=/proc/self/ns/net", "lab ls", "lab up pod-links", "bench pod-links",
		"bench --vm pod-links", "links", "probe", "tun", "socket ls",
	} {
		cmd := exec.Command("/proc/self/fd/3", strings.Fields(args)...)
		cmd.Args[0] = "mustang"
		file := testkit.Must(os.Open(exe))(t)
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

// TestNoSysAdmin installs the plugin as a root who may not make network namespaces, as in many containers: link auto
// can't be selected, and nothing is written.
func TestNoSysAdmin(t *testing.T) {
	testkit.RequireRoot(t)
	dir := t.TempDir()
	for _, more := range [][]string{nil, {"--link", "auto"}} {
		args := append([]string{"--bounding-set=-sys_admin", "--", "mustang", "cni", "install", "--plugin", "/bin/true",
			"--bin-dir", dir + "/bin",
			"--conf-dir", dir + "/conf"}, more...)
		cmd := exec.Command("setpriv", args...)
		out, err := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != exitFailed || err == nil {
			t.Errorf("%s: exit code %d, want %d", args, code, exitFailed)
		}
		if strings.Count(string(out), "\n") != 1 || !strings.Contains(string(out), "CAP_SYS_ADMIN") {
			t.Errorf("%s: %q, want one line that says that it needs CAP_SYS_ADMIN", args, out)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("%v, %v are left", entries, err)
	}
}
