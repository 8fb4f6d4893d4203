// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"bytes"
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
	"mustang/internal/load"
	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

const (
	hostA = "host-a"
	hostB = "host-b"
)

// dockerPath is a way from a client to a server in the docker topology.
type dockerPath struct {
	name           string
	client, server string
	target         string
	// seen is whom the server takes the client for, and seenProxied the same where
	// Docker's proxy carries what comes this way.
	seen, seenProxied string
	// tcpOnly marks paths that UDP does not get through Docker's proxy: the proxy always answers from the address of
	// the bridge.
	tcpOnly bool
	// devices are the devices of host-a that packets cross; "container-a" and the like stand for the host's end of its
	// link.
	devices []string
}

func dockerPaths() []dockerPath {
	return []dockerPath{
		{"from outside to the published port", hostB, lab.ContainerA, "10.0.0.1:6201", "10.0.0.2", "10.0.0.2", false,
			[]string{"uplink", "docker0", lab.ContainerA}},
		{"from the host to the published port", hostA, lab.ContainerA, "10.0.0.1:6201", "172.17.0.1", "10.0.0.1", false,
			[]string{"docker0", lab.ContainerA}},
		{"from the host to the published port on loopback", hostA, lab.ContainerA, "127.0.0.1:6201", "172.17.0.1",
			"172.17.0.1", false,
			[]string{"docker0", lab.ContainerA}},
		{"from the host to the container", hostA, lab.ContainerA, "172.17.0.2:5201", "172.17.0.1", "172.17.0.1", false,
			[]string{"docker0", lab.ContainerA}},
		{"between containers", lab.ContainerB, lab.ContainerA, "172.17.0.2:5201", "172.17.0.3", "172.17.0.3", false,
			[]string{lab.ContainerB, lab.ContainerA}},
		{"between containers by the published port", lab.ContainerB, lab.ContainerA, "10.0.0.1:6201", "172.17.0.3",
			"172.17.0.1", true,
			[]string{lab.ContainerB, lab.ContainerA}},
		{"between containers by the bridge's published port", lab.ContainerB, lab.ContainerA, "172.17.0.1:6201", "172.17.0.3",
			"172.17.0.1", false,
			[]string{lab.ContainerB, lab.ContainerA}},
		{"to a container on the host's network", hostB, lab.ContainerHost, "10.0.0.1:5201", "10.0.0.2", "10.0.0.2", false,
			[]string{"uplink"}},
		{"from a container to the outside", lab.ContainerB, hostB, "10.0.0.2:5201", "10.0.0.1", "10.0.0.1", false,
			[]string{lab.ContainerB, "docker0", "uplink"}},
	}
}

// TestDocker sends TCP and UDP on all paths between the processes of a lab with
// Docker's proxy and of one without, and looks at what they cross.
func TestDocker(t *testing.T) {
	testkit.NotInGuest(t) // where each start of Docker takes a minute
	s := dockerStore(t)
	for _, noProxy := range []bool{false, true} {
		t.Run(fmt.Sprintf("no proxy %t", noProxy), func(t *testing.T) {
			before := testkit.RootSnapshot(t)
			o := options(dockerOptions)
			o.NoProxy = noProxy
			start := time.Now()
			l := up(t, s, o)
			t.Logf("built in %v", time.Since(start))
			during := testkit.RootSnapshot(t)
			testkit.Check(t, during == before, "the root namespace: %s", firstDifference(before, during))
			got := len(labProcesses(t, o.Name, "docker-proxy"))
			testkit.Check(t, (got > 0) != noProxy, "%d processes of Docker's proxy", got)
			for _, p := range dockerPaths() {
				t.Run(p.name, func(t *testing.T) { checkDockerPath(t, l, p) })
			}
			t.Run("places", func(t *testing.T) { checkDockerPlaces(t, s, l) })
			testkit.Succeed(t, l.Close())
			left := dockerLeftovers(t, s, o.Name)
			testkit.Check(t, len(left) == 0, "left after Close: %q", left)
			after := testkit.RootSnapshot(t)
			testkit.Check(t, after == before, "left in the root namespace: %s", firstDifference(before, after))
		})
	}
}

// checkDockerPath echoes through the path and looks at whom the server sees, and at the counters of host-a's devices.
func checkDockerPath(t *testing.T, l *lab.Lab, p dockerPath) {
	client, server := place(t, l, p.client), place(t, l, p.server)
	seen := p.seen
	if !l.Options.NoProxy {
		seen = p.seenProxied
	}
	listen := fmt.Sprintf("0.0.0.0:%d", lab.ServicePort)
	for network, payload := range map[string][]byte{"tcp": bytes.Repeat([]byte("mustang "), 1<<17), "udp": bytes.Repeat(
		[]byte("m"), 1400)} {
		if network == "udp" && p.tcpOnly && !l.Options.NoProxy {
			continue
		}
		t.Run(network, func(t *testing.T) {
			testkit.Echo(t, server, network, listen)
			before := hostDevices(t, l)
			peer := testkit.Must(testkit.RoundTrip(t, client, network, p.target, payload))(t)
			testkit.Check(t, peer.Addr() == netip.MustParseAddr(seen), "the server sees %s, want %s", peer.Addr(), seen)
			after := hostDevices(t, l)
			for _, name := range p.devices {
				if strings.HasPrefix(name, "container-") {
					if name = testkit.Must(l.HostDevice(name))(t); !strings.HasPrefix(name, "veth") {
						t.Fatalf("HostDevice: %q", name)
					}
				}
				crossed := after[name] - before[name]
				testkit.Check(t, crossed >= 2*uint64(len(payload)), "only %d bytes crossed %s", crossed, name)
			}
		})
	}
}

func hostDevices(t *testing.T, l *lab.Lab) map[string]uint64 {
	t.Helper()
	devices := testkit.Must(rtnl.In(place(t, l, hostA)).Devices())(t)
	bytes := map[string]uint64{}
	for _, device := range devices {
		bytes[device.Name] = device.RxBytes + device.TxBytes
	}
	return bytes
}

// labProcesses lists the processes of a docker lab with that name, or all. They are in its control groups, or see
// its files as their mounts.
func labProcesses(t *testing.T, lab, name string) []string {
	t.Helper()
	entries := testkit.Must(os.ReadDir("/proc"))(t)
	var found []string
	for _, entry := range entries {
		dir := "/proc/" + entry.Name()
		mounts, _ := os.ReadFile(dir + "/mountinfo") // a zombie lacks it
		cgroups, _ := os.ReadFile(dir + "/cgroup")
		comm, _ := os.ReadFile(dir + "/comm")
		if len(mounts) > 0 && strings.HasPrefix(string(comm), name) && strings.Contains(string(mounts)+string(cgroups), lab+
			".docker") {
			found = append(found, entry.Name()+" "+strings.TrimSpace(string(comm)))
		}
	}
	return found
}

func dockerLeftovers(t *testing.T, s lab.Store, name string) []string {
	t.Helper()
	left := leftovers(t, name, s.Dir)
	for _, process := range labProcesses(t, name, "") {
		left = append(left, "process "+process)
	}
	return append(left, cgroupsOf(t, name)...)
}

// cgroupsOf lists the control groups of a lab.
func cgroupsOf(t *testing.T, name string) []string {
	t.Helper()
	mounts := testkit.Must(os.ReadFile("/proc/self/mountinfo"))(t)
	var found []string
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); strings.Contains(line, " - cgroup") {
			entries, _ := os.ReadDir(fields[4])
			for _, entry := range entries {
				if entry.Name() == "mst-"+name || strings.HasPrefix(entry.Name(), "mst-"+name+".") {
					found = append(found, "control group "+fields[4]+"/"+entry.Name())
				}
			}
		}
	}
	return found
}

func checkDockerPlaces(t *testing.T, s lab.Store, l *lab.Lab) {
	if got, want := fmt.Sprint(l.Places()), "[container-a container-b container-host host-a host-b]"; got != want {
		t.Errorf("places %s, want %s", got, want)
	}
	inode := func(ns *netns.Namespace) uint64 {
		return testkit.Must(ns.Inode())(t)
	}
	info := testkit.Must(s.Find(l.Options.Name))(t)
	for _, name := range l.Places() {
		entered := enter(t, s, info, name)
		testkit.Check(t, inode(entered) == inode(place(t, l, name)), "Enter leads to another %s", name)
	}
	testkit.Check(t, inode(place(t, l, lab.ContainerHost)) == inode(place(t, l, hostA)),
		"container-host has a network of its own")
	device, err := l.HostDevice(lab.ContainerHost)
	testkit.Check(t, device == "" && err == nil, "device of container-host: %q, %v", device, err)
}

func startAgent(t *testing.T, l *lab.Lab, at string) *load.Agent {
	t.Helper()
	agent, err := load.StartAgent(t.Context(), load.AgentOptions{
		CPU: 1, Env: []string{"MUSTANG_TEST_MARK=here"}, Start: func(cmd *exec.Cmd) error { return l.Start(at, cmd) },
	})
	testkit.Require(t, err == nil, "%s: %v", at, err)
	t.Cleanup(func() { _ = agent.Close() })
	return agent
}

// TestDockerAgents has agents in containers measure each other, and looks at the processes that they are.
func TestDockerAgents(t *testing.T) {
	t.Setenv("DOCKER_HOST", "tcp://127.0.0.1:1") // the user's, and not the lab's
	o := options(dockerOptions)
	l := up(t, dockerStore(t), o)
	server := startAgent(t, l, lab.ContainerA)
	shared := startAgent(t, l, lab.ContainerHost)
	for _, agent := range []*load.Agent{server, shared} {
		testkit.Succeed(t, agent.Listen(t.Context(), netip.MustParseAddrPort("0.0.0.0:5201")))
	}
	for _, way := range []struct{ from, target string }{
		{hostB, "10.0.0.1:6201"}, {hostB, "10.0.0.1:5201"}, {lab.ContainerB, "172.17.0.2:5201"},
		{lab.ContainerHost, "127.0.0.1:6201"},
	} {
		client := startAgent(t, l, way.from)
		for _, workload := range []string{load.TCPStream, load.TCPRR, load.UDPStream} {
			m, err := client.Run(t.Context(), load.Spec{
				Workload: workload, Target: netip.MustParseAddrPort(way.target), Duration: 50 * time.Millisecond,
				Rate: rate(workload),
			})
			testkit.Check(t, err == nil && m.Count != 0, "%s from %s to %s: %+v, %v", workload, way.from, way.target, m, err)
		}
	}
	checkAgentProcess(t, o.Name, server)
}

func rate(workload string) uint64 {
	if workload == load.UDPStream {
		return 10e6
	}
	return 0
}

// checkAgentProcess checks an agent in container-a: where it runs, its CPU and environment, and that it ends with
// its client on the host.
func checkAgentProcess(t *testing.T, name string, agent *load.Agent) {
	t.Helper()
	var pids []int
	for _, line := range labProcesses(t, name, "") {
		var pid int
		if n, _ := fmt.Sscanf(line, "%d ", &pid); n != 1 || pid == agent.PID() {
			continue
		}
		args, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if !strings.HasPrefix(string(args), "/mustang\x00"+load.Command+"\x00") {
			continue
		}
		pids = append(pids, pid)
		environ := testkit.Must(os.ReadFile(filepath.Join("/proc", fmt.Sprint(pid), "environ")))(t)
		for _, want := range []string{"asyncpreemptoff=1", "MUSTANG_TEST_MARK=here"} {
			testkit.Check(t, strings.Contains(string(environ), want), "the environment of process %d lacks %s", pid, want)
		}
		var cpus unix.CPUSet
		if err := unix.SchedGetaffinity(pid, &cpus); err != nil || cpus.Count() != 1 || !cpus.IsSet(1) {
			t.Errorf("process %d runs on %d CPUs, %v", pid, cpus.Count(), err)
		}
	}
	if len(pids) != 4 { // two servers, two clients
		t.Errorf("agents in containers are processes %v, want 4", pids)
	}
	testkit.Succeed(t, agent.Close())
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
