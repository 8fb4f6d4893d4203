// SPDX-License-Identifier: Apache-2.0

package clients

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"mustang/internal/testkit"
)

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
	pid, err := strconv.Atoi(strings.TrimSpace(out))
	testkit.Succeed(t, err)
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
