// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mustang/internal/testkit"
)

// childVariable makes the test program start nodes in the directory that it names, report the result, and wait.
const childVariable = "MUSTANG_TEST_NODES"

// pausedVariable makes it pause them.
const pausedVariable = "MUSTANG_TEST_PAUSED"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childVariable); dir != "" {
		c, err := startNodes(dir)
		if os.Getenv(pausedVariable) != "" {
			err = errors.Join(err, c.Pause())
		}
		fmt.Println(err)
		select {}
	}
	os.Exit(testkit.CheckLeaks(m))
}

// startNodes starts two nodes without Kubernetes, each with a process that does not end by itself.
func startNodes(dir string) (*Cluster, error) {
	c := &Cluster{Options: Options{Setup: Setup{Family: "dual", Nodes: "native"}, Dir: dir}, name: "mustang-" +
		filepath.Base(dir)}
	c.ctx, c.fail = context.WithCancelCause(context.Background())
	if err := os.MkdirAll(c.path("log"), 0o755); err != nil {
		return c, err
	}
	if err := c.startNodes(); err != nil {
		return c, err
	}
	for _, n := range c.nodes {
		if err := n.daemon("sleep", "infinity"); err != nil {
			return c, err
		}
	}
	for _, address := range []string{"10.197.0.12", "fd00:197::12"} {
		if err := c.await(10*time.Second, func() error {
			return testkit.Ping(c.nodes[0].ns, netip.MustParseAddr(address),
				100)
		}); err != nil {
			return c, err
		}
	}
	return c, nil
}

// remains lists the remains of nodes whose files are in dir: processes, and control groups.
func remains(t *testing.T, dir string) (all []string) {
	t.Helper()
	inits := testkit.Must(filepath.Glob("/proc/[0-9]*/cmdline"))(t)
	for _, path := range inits {
		if data, err := os.ReadFile(path); err == nil && strings.Contains(string(data), "init.sh\x00"+dir) {
			all = append(all, path)
		}
	}
	for _, pattern := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} {
		groups := testkit.Must(filepath.Glob(pattern + "mustang-" + filepath.Base(dir)))(t)
		all = append(all, groups...)
	}
	return all
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func newDir(t *testing.T) string {
	t.Helper()
	dir := testkit.Must(os.MkdirTemp("", "nodes-"))(t)
	t.Cleanup(func() {
		err := os.RemoveAll(dir)
		testkit.Check(t, err == nil, "%v", err)
	})
	return dir
}

// TestCloseRemovesNodes starts nodes, looks into one, and ends them.
func TestCloseRemovesNodes(t *testing.T) {
	testkit.RequireRoot(t)
	before, dir := testkit.RootSnapshot(t), newDir(t)
	c, err := startNodes(dir)
	testkit.Check(t, err == nil, "%v", err)
	testkit.Check(t, len(remains(t, dir)) >= 3, "nodes are not found")
	if len(c.nodes) == 2 {
		out, err := c.nodes[1].command(t.Context(), "sh", "-c",
			"hostname; ls /var/lib/cni /run /sys/class/net; cat /proc/sys/kernel/panic; pgrep -c -x sleep").CombinedOutput()
		want := "node2\n/run:\nlock\nnetns\n\n/sys/class/net:\neth0\nlo\n\n/var/lib/cni:\n10\n1\n"
		testkit.Check(t, err == nil && string(out) == want, "a node shows %q, %v, want %q", out, err, want)
	}
	err = c.Close()
	testkit.Check(t, err == nil, "%v", err)
	left := remains(t, dir)
	testkit.Check(t, len(left) == 0 && !exists(filepath.Join(dir, "run")), "Close left %q", left)
	after := testkit.RootSnapshot(t)
	testkit.Check(t, after == before, "the machine's network changed:\n%s\n%s", before, after)
}

// TestPausedNodesEnd pauses nodes, lets them go on, and ends them while they are paused.
func TestPausedNodesEnd(t *testing.T) {
	testkit.RequireRoot(t)
	dir := newDir(t)
	c, err := startNodes(dir)
	testkit.Require(t, err == nil, "%v", err)
	states := func(want string) {
		t.Helper()
		testkit.Eventually(t, 30*time.Second, func() error {
			for _, n := range c.nodes {
				out, err := n.command(t.Context(), "ps", "-C", "sleep", "-o", "state=").Output()
				if got := strings.TrimSpace(string(out)); err != nil || got != want {
					return fmt.Errorf("the state of sleep on %s is %q, %w, want %s", n.name, got, err, want)
				}
			}
			return nil
		})
	}
	states("S")
	testkit.Check(t, c.Pause() == nil, "nodes cannot be paused")
	states("T")
	testkit.Check(t, c.proceed() == nil, "nodes cannot go on")
	states("S")
	testkit.Check(t, c.Pause() == nil, "nodes cannot be paused")
	err = c.Close()
	testkit.Check(t, err == nil, "%v", err)
	left := remains(t, dir)
	testkit.Check(t, len(left) == 0, "Close left %q", left)
	for _, n := range c.nodes {
		for _, d := range n.daemons {
			testkit.Eventually(t, 30*time.Second, func() error {
				if exists(fmt.Sprintf("/proc/%d", d.Process.Pid)) {
					return fmt.Errorf("process %d, which started a daemon, is there", d.Process.Pid)
				}
				return nil
			})
		}
	}
}

// TestKilledStarter kills the process that started nodes, and may have paused them. They end; their control groups go
// with the next cluster's start.
func TestKilledStarter(t *testing.T) {
	testkit.RequireRoot(t)
	for _, paused := range []string{"", "1"} {
		t.Run("paused="+paused, func(t *testing.T) { killStarter(t, paused) })
	}
}

func killStarter(t *testing.T, paused string) {
	t.Helper()
	dir := newDir(t)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"="+dir, pausedVariable+"="+paused)
	out := testkit.Must(cmd.StdoutPipe())(t)
	testkit.Succeed(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	testkit.Check(t, line == "<nil>\n", "nodes: %s, %v", line, err)
	testkit.Succeed(t, cmd.Process.Kill())
	_ = cmd.Wait() // it was killed
	testkit.Eventually(t, 30*time.Second, func() error {
		for _, left := range remains(t, dir) {
			if strings.HasPrefix(left, "/proc/") {
				return fmt.Errorf("%s runs", left)
			}
		}
		return nil
	})
	err = cgroups("remove", "mustang-"+filepath.Base(dir))
	testkit.Check(t, err == nil, "%v", err)
	left := remains(t, dir)
	testkit.Check(t, len(left) == 0, "%q are left", left)
}

// TestDeadDaemonEndsCluster checks that the error names why nodes are unusable.
func TestDeadDaemonEndsCluster(t *testing.T) {
	testkit.RequireRoot(t)
	c, err := startNodes(newDir(t))
	if err == nil {
		err = c.nodes[1].daemon("false")
	}
	if err != nil {
		t.Error(err)
	} else if err := c.Wait(); err == nil || !strings.Contains(err.Error(), "false of node2 ended: exit status 1: see ") {
		t.Errorf("Wait: %v", err)
	}
	err = c.Close()
	testkit.Check(t, err == nil, "%v", err)
}

// TestSubstitute fills in the manifest of this repository.
func TestSubstitute(t *testing.T) {
	manifest := testkit.Must(os.ReadFile("../../../../deploy/mustang.yaml"))(t)
	text, err := substitute(string(manifest), Setup{Link: "macvlan", Family: "ipv6", Nodes: "vxlan"}, "fd00::1")
	for _, want := range []string{"- --link=macvlan\n", "- --routing=vxlan\n", `value: "fd00::1"`} {
		testkit.Check(t, err == nil && strings.Count(text, want) == 1,
			"%q is there %d times, %v", want, strings.Count(text, want), err)
	}
	text, err = substitute(string(manifest), Setup{Link: "auto", Nodes: "one"}, "x")
	testkit.Check(t, err == nil && strings.Contains(text, "--routing=auto\n"), "one node: %v", err)
	_, err = substitute("kind: Pod", Setup{}, "")
	testkit.Check(t, err != nil, "a manifest without flags is taken")
}

// TestPage looks for the commands of the page for users that [Cluster.Kubeadm] runs.
func TestPage(t *testing.T) {
	c := &Cluster{Options: Options{Page: "../../../../docs/kubernetes.md"}}
	for pattern, want := range map[string]string{
		pageInit: "kubeadm init --skip-phases=addon/kube-proxy --pod-network-cidr=", pageHelm: "helm install mustang ",
		pageManifest: "SERVER=", pageTaint: "kubectl taint nodes --all ", pagePods: "kubectl create deployment web ",
		pageImage: "registry.k8s.io/e2e-test-images/agnhost:",
	} {
		got, err := c.page(pattern)
		testkit.Check(t, err == nil && strings.HasPrefix(got, want), "%s finds %q, %v, want %q", pattern, got, err, want)
	}
	_, err := c.page("(no such text)")
	testkit.Check(t, err != nil, "a page without the text is taken")
}
