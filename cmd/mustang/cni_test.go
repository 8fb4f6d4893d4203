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

// cniInstaller runs mustang cni with directories of the test's own.
type cniInstaller struct {
	t           *testing.T
	root        string // holds all that it may change
	bin, conf   string
	plugin      string
	environment map[string]string
}

func newCNIInstaller(t *testing.T) *cniInstaller {
	t.Helper()
	root := t.TempDir()
	plugin := staticProgram(t, netconf.PluginType)
	i := &cniInstaller{t: t, root: root, bin: root + "/bin", conf: root + "/conf", plugin: plugin}
	i.environment = map[string]string{
		cli.EnvBPFRoot: root + "/bpf", "MUSTANG_CNI_STATE_DIR": root + "/state", "MUSTANG_CNI_RUN_DIR": root +
			"/run", envStateDir: root + "/labs",
	}
	return i
}

// run runs a command line with the test's directories.
func (i *cniInstaller) run(args ...string) (code int, stdout, stderr string) {
	i.t.Helper()
	all := append([]string{"cni"}, args...)
	for _, flag := range [][2]string{{"--bin-dir", i.bin}, {"--conf-dir", i.conf}, {"--plugin", i.plugin}} {
		if !slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(arg, flag[0]) }) {
			all = append(all, flag[:]...)
		}
	}
	return command(i.t, i.environment, all...)
}

func (i *cniInstaller) entries() (out []string) {
	i.t.Helper()
	err := filepath.WalkDir(i.root, func(path string, _ os.DirEntry, err error) error {
		out = append(out, strings.TrimPrefix(path, i.root))
		return err
	})
	testkit.Succeed(i.t, err)
	return out
}

// TestCNIInstall installs as an administrator would, again, and takes it away.
func TestCNIInstall(t *testing.T) {
	testkit.RequireRoot(t)
	i := newCNIInstaller(t)
	picked := testkit.Must(netconf.SelectLink())(t)
	plugin, loopback, conf := i.bin+"/mustang-cni", i.bin+"/loopback", i.conf+"/10-mustang.conflist"
	flags := []string{"install", "--link", "auto", "--name", "pods", "--masquerade", "--mtu", "1400", "--services",
		"socket", "--connections", "4096",
		"--subnet", "10.1.0.0/16", "--subnet", "fd00:1::/64"}
	for _, word := range []string{"written", "unchanged"} {
		code, stdout, stderr := i.run(flags...)
		want := "link auto is " + picked + "\nplugin " + plugin + " " + word + "\nplugin " + loopback + " " + word +
			"\nconflist " + conf + " " + word + "\n"
		testkit.Check(t, code == exitDone && stdout == want,
			"exit code %d, stdout %q, want %q, stderr %q", code, stdout, want, stderr)
		testkit.Check(t, strings.Count(stderr, "\n") == strings.Count(stderr, "mustang: note: "), "stderr %q", stderr)
	}
	if got, want := i.entries(), []string{"", "/bin", "/bin/loopback", "/bin/mustang-cni", "/conf",
		"/conf/10-mustang.conflist"}; !slices.Equal(got, want) {
		t.Errorf("there are %q, want %q", got, want)
	}
	list := testkit.Must(libcni.ConfListFromFile(conf))(t)
	if _, err := libcni.NewCNIConfig([]string{i.bin}, nil).ValidateNetworkList(context.Background(), list); err != nil {
		t.Error(err)
	}
	text := testkit.Must(os.ReadFile(conf))(t)
	config := testkit.Must(install.PluginConfig(text))(t)
	c, err := netconf.Parse(config)
	if err != nil || c.Link != picked || c.Name != "pods" || !c.Masquerade || c.MTU != 1400 || c.Connections != 4096 ||
		c.Services != netconf.ServicesSocket || len(c.IPAM.Sets) != 2 {
		t.Errorf("%+v, %v", c, err)
	}
	for _, word := range []string{"removed", "absent"} {
		code, stdout, stderr := i.run("uninstall")
		if want := "conflist " + conf + " " + word + "\nplugin " + loopback + " " + word + "\nplugin " + plugin + " " + word +
			"\n"; code != exitDone || stdout != want || stderr != "" {
			t.Errorf("exit code %d, stdout %q, want %q, stderr %q", code, stdout, want, stderr)
		}
	}
}

// TestCNIInstallForeign keeps the configuration of another network. The error names the way to replace it, and a
// configuration that comes first.
func TestCNIInstallForeign(t *testing.T) {
	i := newCNIInstaller(t)
	conf := i.conf + "/10-mustang.conflist"
	testkit.Succeed(t, os.MkdirAll(i.conf, 0o755))
	const other = `{"name":"other","plugins":[{"type":"bridge"}]}`
	for _, path := range []string{conf, i.conf + "/05-other.conflist"} {
		testkit.Succeed(t, os.WriteFile(path, []byte(other), 0o600))
	}
	for _, verb := range []string{"install", "uninstall"} {
		args := []string{verb}
		if verb == "install" {
			args = append(args, "--link", "veth")
		}
		code, stdout, stderr := i.run(args...)
		if code != exitFailed || stdout != "" || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, conf+
			` is not a file of Mustang (contains plugin "bridge"): `) ||
			strings.Contains(stderr, "--force") != (verb == "install") {
			t.Errorf("%s: exit code %d, stdout %q, stderr %q", verb, code, stdout, stderr)
		}
	}
	_, err := os.Stat(i.bin)
	testkit.Check(t, err != nil, "the plugin's directory was made")
	code, stdout, stderr := i.run("install", "--link", "veth", "--force")
	if code != exitDone || !strings.Contains(stdout, conf+" replaced") || !strings.Contains(stderr, "05-other.conflist") {
		t.Errorf("exit code %d, stdout %q, stderr %q", code, stdout, stderr)
	}
}
