// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mustang/internal/cni/install"
	"mustang/internal/cni/netconf"
	"mustang/internal/netns"
	"mustang/internal/testkit"
)

func (n *agentNode) cleanup(more ...string) *exec.Cmd {
	args := []string{
		"agent", "cleanup", "--all", "--run-dir", n.dir + "/agent", "--cni-conf-dir", n.dir + "/conf", "--cni-bin-dir",
		n.dir + "/bin",
	}
	if !slices.Contains(more, "--netns") {
		args = append(args, "--netns", n.ns.Path())
	}
	cmd := exec.Command("mustang", append(args, more...)...)
	cmd.Env = n.env()
	return cmd
}

// refuses has a cleanup with more arguments fail with a text, and change nothing.
func (n *agentNode) refuses(what, want string, more ...string) {
	n.t.Helper()
	out, err := n.cleanup(more...).CombinedOutput()
	testkit.Check(n.t, err != nil && strings.Contains(string(out), want), "%s: %v: %s", what, err, out)
	for _, path := range []string{filepath.Join(n.dir, "conf", install.DefaultConfName), filepath.Join(n.dir, "bin",
		netconf.PluginType), n.root} {
		_, err := os.Stat(path)
		testkit.Check(n.t, err == nil, "%s: %v", what, err)
	}
}

// TestCleanupAll removes all of a node. It refuses while an agent runs or a pod is attached, unless forced. A wrong
// namespace changes nothing.
func TestCleanupAll(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	n := c.nodes[0]
	program := testkit.Must(os.ReadFile(staticProgram(n.t, netconf.PluginType)))(n.t)
	n.must(os.Mkdir(n.dir+"/bin", 0o755))
	n.must(os.WriteFile(n.dir+"/bin/"+netconf.PluginType, program, 0o755))
	devices := func() string {
		return string(testkit.Must(exec.Command("ip", "-n", n.ns.Name(), "-brief", "addr").CombinedOutput())(n.t))
	}
	before := devices()
	n.start("vxlan")
	config := n.attach()
	n.refuses("an agent", "the agent would undo the removal")
	n.kill()
	pipe := filepath.Join(t.TempDir(), "pipe")
	n.must(unix.Mkfifo(pipe, 0o600))
	n.refuses("a FIFO", `open network namespace "`+pipe, "--force", "--netns", pipe)
	n.refuses("a FIFO, again and again", `open network namespace "`+pipe, "--force", "--stay", "--netns", pipe)
	n.refuses("no namespace", "/run/netns/nobody: no such file", "--force", "--netns", "nobody")
	n.refuses("a pod", "pods are attached, 1 in all (interface eth0 of container pod at ")
	n.call("DEL", config)
	cmd := n.cleanup("--stay")
	stdout, err := cmd.StdoutPipe()
	n.must(err)
	n.must(cmd.Start())
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	lines := bufio.NewScanner(stdout)
	for lines.Scan() && !strings.HasPrefix(lines.Text(), "done") {
	}
	testkit.Check(t, lines.Text() == "done: waiting for a signal", "it says %q", lines.Text())
	routes := n.routes()
	testkit.Check(t, routes == "", "there is %s", routes)
	after := devices()
	testkit.Check(t, after == before, "devices and addresses were\n%sand are\n%s", before, after)
	testkit.Check(t, !n.masquerades(), "there is the agent's table of nftables")
	for _, path := range []string{n.root, n.dir + "/state", n.dir + "/run", n.dir + "/conf/*", n.dir + "/bin/*"} {
		left, err := filepath.Glob(path)
		testkit.Check(t, err == nil && len(left) == 0, "left: %v, %v", left, err)
	}
	n.must(cmd.Process.Signal(os.Interrupt))
	n.must(cmd.Wait())
	out, err := n.cleanup().CombinedOutput()
	testkit.Check(t, err == nil, "again: %v: %s", err, out)

	n.start("vxlan")
	n.attach()
	n.kill()
	out, err = n.cleanup("--force").CombinedOutput()
	testkit.Check(t, err == nil && n.routes() == "", "by force: %v: %s", err, out)

	n.must(netns.Delete(n.pod.Name())) // its DEL never came; another pod may have the name of its namespace
	n.must(testkit.Must(netns.Create(n.pod.Name()))(t).Close())
	out, err = n.cleanup().CombinedOutput()
	_, left := os.Stat(n.dir + "/run")
	testkit.Check(t, err == nil && errors.Is(left, fs.ErrNotExist), "a pod that is gone: %v, %v: %s", err, left, out)
}
