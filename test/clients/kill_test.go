// SPDX-License-Identifier: Apache-2.0

package clients

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mustang/internal/netns"
	"mustang/internal/testkit"
)

const killedVariable = "MUSTANG_TEST_CLIENTS_KILLED" // makes TestKilled the process that is killed

const endTimeout = 20 * time.Second // limits the time that the kernel takes to end a machine's processes

// TestKilled kills a test while its containers and pods run. All processes end with it,
// and the next run removes the rest.
func TestKilled(t *testing.T) {
	if os.Getenv(killedVariable) != "" {
		eachPlugin(t, beKilled, append(containerdPrograms, "podman", "conmon")...)
		return
	}
	t.Parallel()
	testkit.RequireRoot(t)
	for _, program := range append(containerdPrograms, "podman", "conmon") {
		testkit.RequireTool(t, program)
	}
	for _, name := range []string{"bridge", "mustang-veth"} {
		t.Run(name, func(t *testing.T) { testKilled(t, name) })
	}
}

func testKilled(t *testing.T, plugin string) {
	before := outside(t)
	killed := reexec(t, "^TestKilled$/^"+plugin+"$")
	killed.Env = append(killed.Env, killedVariable+"=1")
	testkit.Must(killed.StdinPipe())(t)
	out := testkit.Must(killed.StdoutPipe())(t)
	testkit.Succeed(t, killed.Start())
	defer func() { _, _ = killed.Process.Kill(), killed.Wait() }()
	var said strings.Builder
	for lines := bufio.NewScanner(out); !strings.HasSuffix(said.String(), "ready\n"); {
		testkit.Require(t, lines.Scan(), "it ended: %s", said.String())
		fmt.Fprintln(&said, lines.Text())
	}
	prefix := fmt.Sprintf("%s%d-", cgroupPrefix, killed.Process.Pid)
	for _, program := range []string{"containerd\n", "containerd-shim\n", "conmon\n", "client\n"} {
		if !strings.Contains(strings.Join(processes(t, prefix), ""), " "+program) {
			t.Errorf("%q is not among what runs: %q", program, processes(t, prefix))
		}
	}
	_, _ = killed.Process.Kill(), killed.Wait()
	testkit.Eventually(t, endTimeout, func() error {
		if left := processes(t, prefix); len(left) > 0 {
			return fmt.Errorf("they run still: %q", left)
		}
		return nil
	})
	left := leftovers(t, killed.Process.Pid)
	testkit.Check(t, len(left) != 0, "nothing is left to clear: the test shows nothing")
	text, err := reexec(t, "^$").CombinedOutput()
	testkit.Require(t, err == nil, "%v: %s", err, text)
	left = leftovers(t, killed.Process.Pid)
	testkit.Check(t, len(left) == 0, "left after the next run: %q", left)
	if outside(t) != before {
		t.Errorf("outside of the machine there was %s, and now is %s", before, outside(t))
	}
}

// outside describes what runtimes and plugins would change without a machine: the network
// namespace of the tests, and directories.
func outside(t *testing.T) string {
	t.Helper()
	text := testkit.RootSnapshot(t)
	for _, pattern := range []string{
		"/run/*cni*", "/run/contain*", "/run/libpod*", "/run/crun", "/run/runc", "/run/xtables.lock", "/run/netns/cni-*",
		"/var/lib/cni*", "/var/lib/contain*", "/opt/*", "/etc/cni/*", "/etc/containers/*", "/sys/fs/bpf/mustang*",
	} {
		paths := testkit.Must(filepath.Glob(pattern))(t)
		text += strings.Join(paths, " ") + "\n"
	}
	return text
}

func reexec(t *testing.T, tests string) *exec.Cmd {
	t.Helper()
	exe := testkit.Must(os.Executable())(t)
	cmd := exec.Command(exe, "-test.run="+tests, "-test.v")
	cmd.Env = os.Environ()
	return cmd
}

// beKilled starts a pod and a container of each runtime, and waits to be killed.
func beKilled(t *testing.T, m *machine) {
	m.startContainerd(t, criNamespace)
	c := newCRI(t, m)
	c.runPod(t, c.sandbox("pod"))
	m.startPodman(t)
	m.runPodman(t, "podman")
	fmt.Println("\nready")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// processes returns a line with the ID and name of each process in a network namespace or
// a control group whose name starts with prefix.
func processes(t *testing.T, prefix string) []string {
	t.Helper()
	inodes := map[string]bool{}
	names := testkit.Must(netns.List(prefix))(t)
	for _, name := range names {
		ns := testkit.Must(netns.Open(filepath.Join(netns.Directory, name)))(t)
		inode := testkit.Must(ns.Inode())(t)
		_ = ns.Close()
		inodes[fmt.Sprintf("net:[%d]", inode)] = true
	}
	dirs := testkit.Must(filepath.Glob("/proc/[0-9]*"))(t)
	var found []string
	for _, dir := range dirs {
		namespace, _ := os.Readlink(dir + "/ns/net") // none if it has ended
		groups, _ := os.ReadFile(dir + "/cgroup")
		if inodes[namespace] || strings.Contains(string(groups), "/"+prefix) {
			name, _ := os.ReadFile(dir + "/comm")
			found = append(found, filepath.Base(dir)+" "+string(name))
		}
	}
	return found
}

// leftovers lists the remains of a test process outside its machines.
func leftovers(t *testing.T, pid int) []string {
	t.Helper()
	prefix := fmt.Sprintf("%s%d-", cgroupPrefix, pid)
	found := testkit.Must(cgroups(prefix + "*"))(t)
	namespaces := testkit.Must(netns.List(prefix))(t)
	builds := testkit.Must(filepath.Glob(filepath.Join(os.TempDir(), fmt.Sprintf("%s%d-*", buildPrefix, pid))))(t)
	return append(append(found, namespaces...), builds...)
}
