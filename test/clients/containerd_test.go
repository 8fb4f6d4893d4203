// SPDX-License-Identifier: Apache-2.0

package clients

import (
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/testkit"
)

// containerdConfig keeps the default paths of containerd, which are private to the machine.
const containerdConfig = `version = 2
debug.level = "warn"
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing",
]
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + imageName + `"
  # Fewer rights than usual may not do what containerd does.
  restrict_oom_score_adj = true
  # The machine's own, so that none is left outside.
  netns_mounts_under_state_dir = true
`

// runtimeVersion is the newest version of the CNI specification that Debian 12's containerd 1.6 and podman 4.3 support.
// They reject a newer one with "unsupported CNI result version".
const runtimeVersion = "1.0.0"

const (
	containerdSocket = "/run/containerd/containerd.sock"
	// containerdTimeout limits each wait for containerd. It usually takes a second, and much longer on a busy machine.
	containerdTimeout = 2 * time.Minute
	criNamespace      = "k8s.io" // the containerd namespace of CRI's containers and images
)

// containerdPrograms are containerd, its client and the programs that it runs, from the
// Debian package containerd, which depends on runc.
var containerdPrograms = []string{"containerd", "containerd-shim-runc-v2", "runc", "ctr"}

func (m *machine) startContainerd(t testing.TB, namespace string) {
	t.Helper()
	archive := built(t, image)
	m.configure(t, min(m.plugin.version, runtimeVersion))
	const config = "/run/containerd.toml"
	m.write(t, config, containerdConfig)
	daemon := m.command("containerd", "--config", config)
	m.start(t, daemon)
	testkit.Eventually(t, containerdTimeout, func() error {
		_, err := m.run(m.command("ctr", "--connect-timeout", "1s", "version"))
		return err
	})
	m.mustRun(t, "ctr", "--namespace", namespace, "images", "import", archive)
}

// startContainer runs a container with `ctr run`. It returns the container's pod and the
// command, which ends with the container.
func (m *machine) startContainer(t testing.TB, name string) (pod, *exec.Cmd) {
	t.Helper()
	run := m.command("ctr", "run", "--cni", "--rm", "--null-io", "--cgroup", "/"+m.cgroup()+"/"+name, imageName, name)
	m.start(t, run)
	var pid int
	testkit.Eventually(t, containerdTimeout, func() error {
		out, err := m.run(m.command("ctr", "task", "list"))
		if err != nil {
			return err
		}
		for line := range strings.Lines(out) {
			// TASK PID STATUS
			if fields := strings.Fields(line); len(fields) == 3 && fields[0] == name && fields[2] == "RUNNING" {
				pid, err = strconv.Atoi(fields[1])
				return err
			}
		}
		testkit.Require(t, !hasEnded(run), "%s ended before %s was running", run.Path, name)
		return fmt.Errorf("%s is not running: %s", name, out)
	})
	return m.podOf(t, pid), run
}

// TestContainerd runs containers with containerd's own client, which calls DEL after the
// container has ended, without a namespace.
func TestContainerd(t *testing.T) {
	eachPlugin(t, func(t *testing.T, m *machine) {
		m.startContainerd(t, "default")
		a, runA := m.startContainer(t, "a")
		b, runB := m.startContainer(t, "b")
		checkLeases(t, m, slices.Concat(a.addrs, b.addrs)...)
		checkPods(t, m, a, b)
		for _, run := range []*exec.Cmd{runA, runB} {
			if err := run.Process.Signal(unix.SIGTERM); err != nil { // ctr forwards it to the container
				t.Fatal(err)
			}
			err := run.Wait()
			testkit.Check(t, err == nil, "ctr run: %v", err)
		}
	}, containerdPrograms...)
}

// podmanConfig makes podman call CNI plugins instead of netavark.
const podmanConfig = `[network]
network_backend = "cni"
cni_plugin_dirs = ["` + pluginDir + `"]
network_config_dir = "` + configDir + `"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
runtime = "runc"
`

// podmanPrograms are podman and the programs that it runs, from the Debian package podman, which depends on conmon.
var podmanPrograms = []string{"podman", "conmon", "runc"}

func (m *machine) startPodman(t testing.TB) {
	t.Helper()
	m.configure(t, min(m.plugin.version, runtimeVersion))
	m.write(t, "/etc/containers/containers.conf", podmanConfig)
	m.mustRun(t, "podman", "load", "--quiet", "--input", built(t, image))
}

// runPodman runs a container on the plugin's network.
func (m *machine) runPodman(t testing.TB, name string, flags ...string) pod {
	t.Helper()
	args := []string{"run", "--detach", "--name", name, "--network", m.plugin.network(), "--cgroup-parent", "/" +
		m.cgroup(), "--log-driver", "none"}
	m.mustRun(t, "podman", slices.Concat(args, flags, []string{imageName})...)
	return m.podmanPod(t, name)
}

func (m *machine) podmanPod(t testing.TB, name string) pod {
	t.Helper()
	out := m.mustRun(t, "podman", "inspect", "--format", "{{.State.Pid}}", name)
	pid := testkit.Must(strconv.Atoi(strings.TrimSpace(out)))(t)
	return m.podOf(t, pid)
}

// TestPodman runs containers with podman.
func TestPodman(t *testing.T) {
	eachPlugin(t, func(t *testing.T, m *machine) {
		m.startPodman(t)
		var publish []string
		if m.plugin.ports {
			for _, protocol := range []string{"tcp", "udp"} {
				publish = append(publish, "--publish", fmt.Sprintf("%d:%d/%s", hostPort, podPort, protocol))
			}
		}
		a, b := m.runPodman(t, "a", publish...), m.runPodman(t, "b")
		checkLeases(t, m, slices.Concat(a.addrs, b.addrs)...)
		checkPods(t, m, a, b)
		if m.plugin.ports {
			checkPorts(t, m, a)
		}
		if m.plugin.services {
			m.giveMustang(t)
			client := []string{"exec", "b", imageProgram}
			for _, service := range m.serve(t, 1, a) {
				client = append(client, service.String())
			}
			m.mustRun(t, "podman", client...)
		}
		// A restart deletes the container's attachment and adds it again.
		m.mustRun(t, "podman", "restart", "--time", "0", "a")
		a = m.podmanPod(t, "a")
		checkLeases(t, m, slices.Concat(a.addrs, b.addrs)...)
		checkPods(t, m, a, b)
		if m.plugin.ports {
			checkPorts(t, m, a)
		}
		m.mustRun(t, "podman", "rm", "--force", "--time", "0", "a", "b")
	}, podmanPrograms...)
}
