// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"mustang/internal/lab"
	"mustang/internal/nl"
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
	// tcpOnly is for what UDP does not get through Docker's proxy: that answers from
	// the address of the bridge, whatever address was asked.
	tcpOnly bool
	// devices are those of host-a that packets cross; "container-a" and the like
	// stand for the host's end of its link.
	devices []string
}

func dockerPaths() []dockerPath {
	return []dockerPath{
		{"from outside to the published port", hostB, lab.ContainerA, "10.0.0.1:6201", "10.0.0.2", "10.0.0.2", false,
			[]string{"uplink", "docker0", lab.ContainerA}},
		{"from the host to the published port", hostA, lab.ContainerA, "10.0.0.1:6201", "172.17.0.1", "10.0.0.1", false,
			[]string{"docker0", lab.ContainerA}},
		{"from the host to the published port on loopback", hostA, lab.ContainerA, "127.0.0.1:6201", "172.17.0.1", "172.17.0.1", false,
			[]string{"docker0", lab.ContainerA}},
		{"from the host to the container", hostA, lab.ContainerA, "172.17.0.2:5201", "172.17.0.1", "172.17.0.1", false,
			[]string{"docker0", lab.ContainerA}},
		{"between containers", lab.ContainerB, lab.ContainerA, "172.17.0.2:5201", "172.17.0.3", "172.17.0.3", false,
			[]string{lab.ContainerB, lab.ContainerA}},
		{"between containers by the published port", lab.ContainerB, lab.ContainerA, "10.0.0.1:6201", "172.17.0.3", "172.17.0.1", true,
			[]string{lab.ContainerB, lab.ContainerA}},
		{"between containers by the bridge's published port", lab.ContainerB, lab.ContainerA, "172.17.0.1:6201", "172.17.0.3", "172.17.0.1", false,
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
			if during := testkit.RootSnapshot(t); during != before {
				t.Errorf("the root namespace: %s", firstDifference(before, during))
			}
			if got := len(labProcesses(t, o.Name, "docker-proxy")); (got > 0) == noProxy {
				t.Errorf("%d processes of Docker's proxy", got)
			}
			for _, p := range dockerPaths() {
				t.Run(p.name, func(t *testing.T) { checkDockerPath(t, l, p) })
			}
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			if left := dockerLeftovers(t, s, o.Name); len(left) > 0 {
				t.Errorf("left after Close: %q", left)
			}
			if after := testkit.RootSnapshot(t); after != before {
				t.Errorf("left in the root namespace: %s", firstDifference(before, after))
			}
		})
	}
}

// checkDockerPath echoes through the path and looks at whom the server sees, and
// at the counters of host-a's devices.
func checkDockerPath(t *testing.T, l *lab.Lab, p dockerPath) {
	client, server := place(t, l, p.client), place(t, l, p.server)
	seen := p.seen
	if !l.Options.NoProxy {
		seen = p.seenProxied
	}
	listen := fmt.Sprintf("0.0.0.0:%d", lab.ServicePort)
	for network, payload := range map[string][]byte{"tcp": bytes.Repeat([]byte("mustang "), 1<<17), "udp": bytes.Repeat([]byte("m"), 1400)} {
		if network == "udp" && p.tcpOnly && !l.Options.NoProxy {
			continue
		}
		t.Run(network, func(t *testing.T) {
			testkit.Echo(t, server, network, listen)
			before := hostDevices(t, l)
			peer, err := testkit.RoundTrip(t, client, network, p.target, payload)
			if err != nil {
				t.Fatal(err)
			}
			if peer.Addr() != netip.MustParseAddr(seen) {
				t.Errorf("the server sees %s, want %s", peer.Addr(), seen)
			}
			after := hostDevices(t, l)
			for _, name := range p.devices {
				if strings.HasPrefix(name, "container-") {
					if name, err = l.HostDevice(name); err != nil || !strings.HasPrefix(name, "veth") {
						t.Fatalf("HostDevice: %q, %v", name, err)
					}
				}
				if crossed := after[name] - before[name]; crossed < 2*uint64(len(payload)) {
					t.Errorf("only %d bytes crossed %s", crossed, name)
				}
			}
		})
	}
}

// hostDevices returns the bytes that host-a's devices carried.
func hostDevices(t *testing.T, l *lab.Lab) map[string]uint64 {
	t.Helper()
	devices, err := place(t, l, hostA).Devices()
	if err != nil {
		t.Fatal(err)
	}
	bytes := map[string]uint64{}
	for _, device := range devices {
		bytes[device.Name] = device.RxBytes + device.TxBytes
	}
	return bytes
}

// labProcesses lists the processes of a docker lab with that name, or all: those
// in its control groups, and those that see its files as their mounts.
func labProcesses(t *testing.T, lab, name string) []string {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, entry := range entries {
		dir := "/proc/" + entry.Name()
		mounts, _ := os.ReadFile(dir + "/mountinfo") // a zombie has none
		cgroups, _ := os.ReadFile(dir + "/cgroup")
		comm, _ := os.ReadFile(dir + "/comm")
		if len(mounts) > 0 && strings.HasPrefix(string(comm), name) && strings.Contains(string(mounts)+string(cgroups), lab+".docker") {
			found = append(found, entry.Name()+" "+strings.TrimSpace(string(comm)))
		}
	}
	return found
}

// dockerLeftovers lists what is left of a lab.
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
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
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

// TestDockerPlaces looks at what the lab says about its containers.
func TestDockerPlaces(t *testing.T) {
	testkit.NotInGuest(t) // where each start of Docker takes a minute
	s := dockerStore(t)
	o := options(dockerOptions)
	l := up(t, s, o)
	if got, want := fmt.Sprint(l.Places()), "[container-a container-b container-host host-a host-b]"; got != want {
		t.Errorf("places %s, want %s", got, want)
	}
	inode := func(ns *nl.Namespace) uint64 {
		number, err := ns.Inode()
		if err != nil {
			t.Fatal(err)
		}
		return number
	}
	info, err := s.Find(o.Name)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range l.Places() {
		if entered := enter(t, s, info, name); inode(entered) != inode(place(t, l, name)) {
			t.Errorf("Enter leads to another %s", name)
		}
	}
	if inode(place(t, l, lab.ContainerHost)) != inode(place(t, l, hostA)) {
		t.Error("container-host has a network of its own")
	}
	if device, err := l.HostDevice(lab.ContainerHost); device != "" || err != nil {
		t.Errorf("device of container-host: %q, %v", device, err)
	}
	if err := l.Start(lab.ContainerA, exec.Command("sleep", "1")); err == nil || !strings.Contains(err.Error(), "sleep") {
		t.Errorf("error %v for a program that is not in the containers", err)
	}
}
