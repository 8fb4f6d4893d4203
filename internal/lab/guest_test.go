// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"mustang/internal/lab"
	"mustang/internal/load"
	"mustang/internal/podlink"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
	"mustang/internal/vm"
)

func guestProgram(t *testing.T) string {
	t.Helper()
	testkit.NotInGuest(t)
	testkit.RequireRoot(t)
	testkit.RequireTool(t, "qemu-system-x86_64")
	return testkit.Must(mustang())(t)
}

func bootAgent(t *testing.T, l *lab.Lab, program, place string) *load.Agent {
	t.Helper()
	a, err := load.StartAgent(t.Context(), load.AgentOptions{
		Exe: program, CPU: -1, Timeout: time.Minute, Start: func(cmd *exec.Cmd) error { return l.Start(place, cmd) },
	})
	testkit.Succeed(t, err)
	t.Cleanup(func() { _ = a.Close() })
	return a
}

// TestGuests sends packets between two guests and from one to its host, by tap; in the long form by each link that
// guests have.
func TestGuests(t *testing.T) {
	program := guestProgram(t)
	s := store(t)
	for _, link := range []string{"tap", "ovs-tap"}[:testkit.Repeats(1, 2)] {
		t.Run(link, func(t *testing.T) {
			if link == "ovs-tap" {
				testkit.RequireTool(t, "ovs-vswitchd")
			}
			o := options(lab.Options{Link: link, Guests: true})
			l := testkit.Must(s.Up(t.Context(), o))(t)
			t.Logf("acceleration %s", l.Acceleration())
			a := l.Acceleration()
			testkit.Check(t, a == vm.KVM || a == vm.TCG, "acceleration %q", a)
			places := l.Places()
			testkit.Check(t, slices.Equal(places, []string{lab.Host}), "places with a namespace: %v", places)
			if info, err := s.Find(o.Name); err != nil || !slices.Equal(s.Places(info), []string{lab.Host}) {
				t.Errorf("places to enter: %v, %v", s.Places(info), err)
			}
			checkNoBoot(t, l)
			agents := startGuests(t, l, program)
			checkTraffic(t, l, agents)
			checkCPU(t, agents[lab.PodB])
			err := l.Start(lab.PodA, exec.Command(program))
			testkit.Check(t, err != nil && strings.Contains(err.Error(), "already runs"), "a second command in a guest: %v", err)
			if link == "tap" {
				checkRestart(t, l, program, agents)
			}
			processes := processTree(t, agents[lab.PodB].PID())
			err = l.Close()
			testkit.Check(t, err == nil, "%v", err)
			left := leftovers(t, o.Name, s.Dir)
			testkit.Check(t, len(left) == 0, "left after Close: %q", left)
			mustEnd(t, processes)
		})
	}
}

// startGuests starts agents in both guests, at the same time, and on the host.
func startGuests(t *testing.T, l *lab.Lab, program string) map[string]*load.Agent {
	t.Helper()
	cpus := runtime.NumCPU()
	agents := map[string]*load.Agent{}
	var mu sync.Mutex
	var starts errgroup.Group
	for i, place := range []string{lab.PodA, lab.PodB, lab.Host} {
		starts.Go(func() error {
			begin := time.Now()
			a, err := load.StartAgent(t.Context(), load.AgentOptions{
				Exe: program, CPU: i % cpus, Timeout: time.Minute, Start: func(cmd *exec.Cmd) error {
					mu.Lock() // a lab is not for several goroutines at once
					defer mu.Unlock()
					return l.Start(place, cmd)
				},
			})
			if err != nil {
				return fmt.Errorf("%s: %w", place, err)
			}
			t.Cleanup(func() { _ = a.Close() })
			t.Logf("agent at %s is ready after %v", place, time.Since(begin))
			mu.Lock()
			defer mu.Unlock()
			agents[place] = a
			return nil
		})
	}
	testkit.Succeed(t, starts.Wait())
	return agents
}

// checkTraffic sends from pod-b to pod-a and to the host.
func checkTraffic(t *testing.T, l *lab.Lab, agents map[string]*load.Agent) {
	t.Helper()
	host := place(t, l, lab.Host)
	for _, test := range []struct {
		name, workload, server string
		at                     netip.Addr
	}{
		{"TCP", load.TCPStream, lab.PodA, lab.PodAIPs[0]},
		{"TCP IPv6", load.TCPStream, lab.PodA, lab.PodAIPs[1]},
		{"UDP", load.UDPStream, lab.PodA, lab.PodAIPs[0]},
		{"round trips", load.TCPRR, lab.PodA, lab.PodAIPs[0]},
		{"TCP to the host", load.TCPStream, lab.Host, lab.Gateways[0].Addr()},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := agents[test.server]
			testkit.Succeed(t, server.Listen(t.Context(), netip.AddrPortFrom(test.at, 0)))
			spec := load.Spec{
				Workload: test.workload, Target: server.Address(), Duration: 300 * time.Millisecond, Stall: 10 * time.Second,
			}
			if test.workload == load.UDPStream {
				spec.Rate = 5e6
			}
			before := testkit.Must(rtnl.In(host).Device(podlink.DefaultBridge))(t)
			m := testkit.Must(agents[lab.PodB].Run(t.Context(), spec))(t)
			after := testkit.Must(rtnl.In(host).Device(podlink.DefaultBridge))(t)
			if got := after.RxBytes - before.RxBytes; test.server == lab.Host && got < m.Count {
				t.Errorf("%d bytes came to the host by the switch, of %d", got, m.Count)
			}
			if m.Count == 0 || m.ServerLocal.Addr() != test.at || m.ClientLocal.Addr() == test.at ||
				m.ServerPeer != m.ClientLocal {
				t.Errorf("measurement %+v", m)
			}
			t.Logf("%.4g %s, %d sent, %d received", m.Rate, m.Unit, m.Sent, m.Received)
		})
	}
}

// checkNoBoot starts a program that no guest can boot with.
func checkNoBoot(t *testing.T, l *lab.Lab) {
	t.Helper()
	_, err := load.StartAgent(t.Context(), load.AgentOptions{
		Exe: "/bin/sh", Start: func(cmd *exec.Cmd) error { return l.Start(lab.PodA, cmd) },
	})
	if err == nil || !strings.Contains(err.Error(), "guest pod-a") ||
		!strings.Contains(err.Error(), "/bin/sh is not static") ||
		strings.Contains(err.Error(), "\n") {
		t.Errorf("a program that is not static: %v", err)
	}
}

func checkCPU(t *testing.T, a *load.Agent) {
	t.Helper()
	for _, pid := range processTree(t, a.PID())[1:] {
		var set unix.CPUSet
		if err := unix.SchedGetaffinity(pid, &set); err != nil || set.Count() != 1 || !set.IsSet(1%runtime.NumCPU()) {
			t.Errorf("QEMU may run on %d CPUs, %v; want the second one only", set.Count(), err)
		}
	}
}

// checkRestart kills the process of a guest, which leaves nothing, and starts another one in its place.
func checkRestart(t *testing.T, l *lab.Lab, program string, agents map[string]*load.Agent) {
	t.Helper()
	processes := processTree(t, agents[lab.PodB].PID())
	testkit.Check(t, len(processes) == 2, "processes %v, want that of the guest and QEMU", processes)
	testkit.Succeed(t, agents[lab.PodB].Close())
	mustEnd(t, processes)
	agents[lab.PodB] = bootAgent(t, l, program, lab.PodB)
	server := agents[lab.PodA]
	testkit.Succeed(t, server.Listen(t.Context(), netip.AddrPortFrom(lab.PodAIPs[1], 0)))
	spec := load.Spec{Workload: load.TCPRR, Target: server.Address(), Duration: 100 * time.Millisecond,
		Stall: 10 * time.Second}
	_, err := agents[lab.PodB].Run(t.Context(), spec)
	testkit.Check(t, err == nil, "after another boot: %v", err)
}

func processTree(t *testing.T, pid int) []int {
	t.Helper()
	pids := []int{pid}
	lists := testkit.Must(filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid)))(t)
	for _, list := range lists {
		text, err := os.ReadFile(list)
		testkit.Require(t, err == nil || errors.Is(err, os.ErrNotExist), "%v", err)
		for field := range strings.FieldsSeq(string(text)) {
			child := testkit.Must(strconv.Atoi(field))(t)
			pids = append(pids, child)
		}
	}
	return pids
}

func mustEnd(t *testing.T, pids []int) {
	t.Helper()
	for _, pid := range pids {
		testkit.Eventually(t, 5*time.Second, func() error {
			if err := unix.Kill(pid, 0); !errors.Is(err, unix.ESRCH) && !zombie(pid) {
				return fmt.Errorf("process %d lives: %v", pid, err)
			}
			return nil
		})
	}
}
