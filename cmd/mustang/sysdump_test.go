// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/testkit"
)

// TestSysdump collects from this node, which has secrets in its environment, its logs and beside its configuration.
func TestSysdump(t *testing.T) {
	testkit.RequireRoot(t)
	const secret = "Hunter2hunter2"
	dir := t.TempDir()
	t.Setenv("DB_PASSWORD", secret)
	t.Setenv("MUSTANG_TOKEN", secret)
	for name, text := range map[string]string{
		"conf/10-other.conflist": `{"name": "other", "plugins": [{"type": "other", "k8s_auth_token": "` + secret +
			`", "kubernetes": {"kubeconfig": "/etc/x"}}]}`,
		"conf/20-config.json": `{"apiVersion": "v1", "kind": "Config", "users": [{"name": "x", "user": {"x": "` +
			secret + `"}}]}`,
		"conf/other-kubeconfig": "users: [{user: {token: " + secret + "}}]",
		"agent.log": "level=INFO msg=synced\nlevel=ERROR error=\"Unauthorized: Bearer " + secret +
			"\"\npassword: " + secret + "\n",
		"run/net/attachments/a":   secret,
		"run/net/network.json":    `{"link": "veth"}`,
		"state/net/other/content": secret,
	} {
		path := filepath.Join(dir, name)
		testkit.Succeed(t, os.MkdirAll(filepath.Dir(path), 0o700))
		testkit.Succeed(t, os.WriteFile(path, []byte(text), 0o600))
	}
	env := map[string]string{
		cli.EnvBPFRoot: filepath.Join(testkit.BPFFS(t), "mustang"), envStateDir: dir + "/labs", "MUSTANG_CNI_RUN_DIR": dir +
			"/run", "MUSTANG_CNI_STATE_DIR": dir + "/state",
	}
	if code, _, stderr := command(t, env, "svc", "add", "--service=10.96.0.1:80",
		"--backend=10.1.0.1:80"); code != exitDone {
		t.Fatal(stderr)
	}
	out := dir + "/dump.tar.gz"
	args := []string{"sysdump", "-f", out, "--log", dir + "/agent.log", "--cni-conf-dir", dir + "/conf", "--run-dir",
		dir + "/agent"}
	if code, stdout, stderr := command(t, env, args...); code != exitDone || !strings.HasPrefix(stdout, out+": ") ||
		!strings.Contains(stdout, " KiB, of this node\n") || stderr != "" {
		t.Fatalf("code %d, stdout %q, stderr %q", code, stdout, stderr)
	}
	if info, err := os.Stat(out); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	all := testkit.ReadArchive(t, out)
	for name, want := range map[string]string{
		"commands/svc-ls.json": `"service": "10.96.0.1"`, "commands/version.txt": "mustang ",
		"commands/status.txt": "services", "commands/links.json": `"lo"`, "commands/probe.txt": "veth",
		"network.txt": "dev \"lo\"", "sysctls.txt": "net/ipv4/ip_forward = ",
		"files/proc/version": "Linux", "pins.txt": "services",
		"files" + dir + "/agent.log": "msg=synced", "cni" + dir + "/conf/10-other.conflist": `"kubeconfig": "/etc/x"`, "cni" +
			dir + "/run/net/network.json": "veth",
		"cni/files.txt": "other-kubeconfig",
		"missing.txt":   "commands/agent-status.txt: exit code 1: mustang: no agent answers",
	} {
		testkit.Check(t, strings.Contains(all[name], want), "%s has %.300q, want %q", name, all[name], want)
	}
	testkit.Check(t, strings.Contains(all["missing.txt"], "metrics.txt"), "missing.txt has %s", all["missing.txt"])
	for name, text := range all {
		testkit.Check(t, !strings.Contains(text, secret), "%s has a secret", name)
	}
	code, _, stderr := command(t, env, args...)
	testkit.Check(t, code == exitFailed && strings.Contains(stderr, "exists"), "a second one: %d, %s", code, stderr)
}
