// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/lab"
	"mustang/internal/testkit"
	"mustang/internal/traffic"
)

// startAgent starts an agent at a place of the lab.
func startAgent(t *testing.T, l *lab.Lab, at string) *traffic.Agent {
	t.Helper()
	agent, err := traffic.StartAgent(traffic.AgentOptions{
		CPU: 1, Env: []string{"MUSTANG_TEST_MARK=here"}, Start: func(cmd *exec.Cmd) error { return l.Start(at, cmd) },
	})
	if err != nil {
		t.Fatalf("%s: %v", at, err)
	}
	t.Cleanup(func() { _ = agent.Close() })
	return agent
}

// TestDockerAgents has agents in containers measure each other, and looks at the
// processes that they are.
func TestDockerAgents(t *testing.T) {
	t.Setenv("DOCKER_HOST", "tcp://127.0.0.1:1") // the user's, and not the lab's
	o := options(dockerOptions)
	l := up(t, dockerStore(t), o)
	server := startAgent(t, l, lab.ContainerA)
	shared := startAgent(t, l, lab.ContainerHost)
	for _, agent := range []*traffic.Agent{server, shared} {
		if err := agent.Listen(t.Context(), netip.MustParseAddrPort("0.0.0.0:5201")); err != nil {
			t.Fatal(err)
		}
	}
	for _, way := range []struct{ from, target string }{
		{hostB, "10.0.0.1:6201"}, {hostB, "10.0.0.1:5201"}, {lab.ContainerB, "172.17.0.2:5201"}, {lab.ContainerHost, "127.0.0.1:6201"},
	} {
		client := startAgent(t, l, way.from)
		for _, workload := range []string{traffic.TCPStream, traffic.TCPRR, traffic.UDPStream} {
			m, err := client.Run(t.Context(), traffic.Spec{
				Workload: workload, Target: netip.MustParseAddrPort(way.target), Duration: 50 * time.Millisecond, Rate: rate(workload),
			})
			if err != nil || m.Count == 0 {
				t.Errorf("%s from %s to %s: %+v, %v", workload, way.from, way.target, m, err)
			}
		}
	}
	checkAgentProcess(t, o.Name, server)
}

// rate is what a UDP stream of the tests offers.
func rate(workload string) uint64 {
	if workload == traffic.UDPStream {
		return 10e6
	}
	return 0
}

// checkAgentProcess looks at an agent in container-a: where it runs, its CPU and
// environment, and that it ends when the client does that stands for it.
func checkAgentProcess(t *testing.T, name string, agent *traffic.Agent) {
	t.Helper()
	var pids []int
	for _, line := range labProcesses(t, name, "") {
		var pid int
		if n, _ := fmt.Sscanf(line, "%d ", &pid); n != 1 || pid == agent.PID() {
			continue
		}
		args, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if !strings.HasPrefix(string(args), "/mustang\x00traffic-agent\x00") {
			continue
		}
		pids = append(pids, pid)
		environ, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(pid), "environ"))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"asyncpreemptoff=1", "MUSTANG_TEST_MARK=here"} {
			if !strings.Contains(string(environ), want) {
				t.Errorf("the environment of process %d lacks %s", pid, want)
			}
		}
		var cpus unix.CPUSet
		if err := unix.SchedGetaffinity(pid, &cpus); err != nil || cpus.Count() != 1 || !cpus.IsSet(1) {
			t.Errorf("process %d runs on %d CPUs, %v", pid, cpus.Count(), err)
		}
	}
	if len(pids) != 4 { // two servers, two clients
		t.Errorf("agents in containers are processes %v, want 4", pids)
	}
	if err := agent.Close(); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	testkit.Eventually(t, 5*time.Second, func() error {
		alive := 0
		for _, pid := range pids {
			if unix.Kill(pid, 0) == nil && !zombie(pid) {
				alive++
			}
		}
		if alive != len(pids)-1 {
			return fmt.Errorf("%d of %d agents live", alive, len(pids))
		}
		return nil
	})
	t.Logf("ended %v after its client", time.Since(start))
}
