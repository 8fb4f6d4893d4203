// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/cni/install"
	"mustang/internal/cni/netconf"
	"mustang/internal/testkit"
)

// TestCNIInstall installs as an administrator would, again, and takes it away.
func TestCNIInstall(t *testing.T) {
	testkit.RequireRoot(t)
	root := t.TempDir() // holds all that it may change
	env := map[string]string{cli.EnvBPFRoot: root + "/bpf", "MUSTANG_CNI_STATE_DIR": root + "/state",
		"MUSTANG_CNI_RUN_DIR": root + "/run", envStateDir: root + "/labs"}
	run := func(args ...string) (code int, stdout, stderr string) {
		t.Helper()
		return command(t, env, slices.Concat([]string{"cni"}, args, []string{"--bin-dir", root + "/bin", "--conf-dir",
			root + "/conf", "--plugin", staticProgram(t, netconf.PluginType)})...)
	}
	picked := testkit.Must(netconf.SelectLink())(t)
	plugin, loopback, conf := root+"/bin/mustang-cni", root+"/bin/loopback", root+"/conf/10-mustang.conflist"
	code, _, stderr := run("status")
	testkit.Check(t, code == exitFailed && strings.Contains(stderr, "not installed: stat "+plugin),
		"status: exit code %d, %q", code, stderr)
	code, stdout, _ := run("install", "--link", "veth", "--dry-run")
	_, err := os.Stat(root + "/bin")
	testkit.Check(t, code == exitDone && strings.Contains(stdout, "without --dry-run:\nplugin "+plugin+" written\n") &&
		os.IsNotExist(err), "dry run: exit code %d, stdout %q, %v", code, stdout, err)
	for _, word := range []string{"written", "unchanged"} {
		code, stdout, stderr := run("install", "--link", "auto", "--name", "pods", "--masquerade", "--mtu", "1400",
			"--services", "socket", "--connections", "4096", "--subnet", "10.1.0.0/16", "--subnet", "fd00:1::/64")
		want := "link auto is " + picked + "\nplugin " + plugin + " " + word + "\nplugin " + loopback + " " + word +
			"\nconflist " + conf + " " + word + "\n"
		testkit.Check(t, code == exitDone && stdout == want,
			"exit code %d, stdout %q, want %q, stderr %q", code, stdout, want, stderr)
		testkit.Check(t, strings.Count(stderr, "\n") == strings.Count(stderr, "mustang: note: "), "stderr %q", stderr)
	}
	var entries []string
	testkit.Succeed(t, filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
		entries = append(entries, strings.TrimPrefix(path, root))
		return err
	}))
	want := []string{"", "/bin", "/bin/loopback", "/bin/mustang-cni", "/conf", "/conf/10-mustang.conflist"}
	testkit.Check(t, slices.Equal(entries, want), "there are %q, want %q", entries, want)
	code, stdout, stderr = run("status")
	testkit.Check(t, code == exitFailed && stdout == "plugin  "+plugin+"\nnetwork "+conf+"\n" &&
		strings.Contains(stderr, "pods cannot be attached: \""+root+"/bpf\" is not on a BPF file system"),
		"status: exit code %d, %q, %q", code, stdout, stderr)
	list := testkit.Must(libcni.ConfListFromFile(conf))(t)
	testkit.Must(libcni.NewCNIConfig([]string{root + "/bin"}, nil).ValidateNetworkList(context.Background(), list))(t)
	text := testkit.Must(os.ReadFile(conf))(t)
	config := testkit.Must(install.PluginConfig(text))(t)
	c, err := netconf.Parse(config)
	testkit.Check(t, err == nil && c.Link == picked && c.Name == "pods" && c.Masquerade && c.MTU == 1400 &&
		c.Connections == 4096 && c.Services == netconf.ServicesSocket && len(c.IPAM.Sets) == 2,
		"%+v, %v", c, err)
	for _, word := range []string{"removed", "absent"} {
		code, stdout, stderr := run("uninstall")
		want := "conflist " + conf + " " + word + "\nplugin " + loopback + " " + word + "\nplugin " + plugin + " " + word + "\n"
		testkit.Check(t, code == exitDone && stdout == want && stderr == "",
			"exit code %d, stdout %q, want %q, stderr %q", code, stdout, want, stderr)
	}
}
