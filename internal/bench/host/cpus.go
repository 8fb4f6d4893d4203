// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// CPUPair is the CPUs that clients and servers are pinned to.
//
// By default both run on one CPU: the rate then reflects the work of the whole path. On two CPUs each transaction also
// wakes an idle CPU. In virtual machines that takes many times as long as the path, and varies more than paths differ.
type CPUPair struct {
	// Client and Server are CPU numbers.
	Client, Server int
	// Set marks an explicit choice. Otherwise both are the first CPU that this process may use.
	Set bool
}

// AnyCPU pins neither client nor server: the scheduler places them, and TCP has the machine's congestion control, as in
// the pods of a cluster.
var AnyCPU = CPUPair{Client: -1, Server: -1, Set: true}

// ParseCPUs parses "CLIENT,SERVER", such as "0,1", or one number for both.
func ParseCPUs(text string) (CPUPair, error) {
	client, server, two := strings.Cut(text, ",")
	if !two {
		server = client
	}
	clientCPU, err1 := strconv.ParseUint(client, 10, 10)
	serverCPU, err2 := strconv.ParseUint(server, 10, 10)
	if err1 != nil || err2 != nil {
		return CPUPair{}, fmt.Errorf("--cpus %q: want CLIENT,SERVER such as 0,1", text)
	}
	return CPUPair{Client: int(clientCPU), Server: int(serverCPU), Set: true}, nil
}

// Resolve returns the pair with the default filled in, and an error if this process may not use one of the CPUs.
func (p CPUPair) Resolve() (CPUPair, error) {
	usable, err := usableCPUs()
	switch {
	case err != nil, p == AnyCPU:
		return p, err
	case !p.Set:
		return CPUPair{Client: usable[0], Server: usable[0], Set: true}, nil
	}
	for _, cpu := range []int{p.Client, p.Server} {
		if !slices.Contains(usable, cpu) {
			return p, fmt.Errorf("CPU %d is not available to this process; available: %v", cpu, usable)
		}
	}
	return p, nil
}

func usableCPUs() (cpus []int, err error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("read CPU affinity: %w", err)
	}
	for cpu := range len(set) * 64 {
		if set.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	return cpus, nil // the kernel leaves each process one at least
}

// Other returns a CPU for clients that the server does not run on. It returns an error if this is the only CPU, or
// if the pair has two CPUs already. The pair must be resolved.
func (p CPUPair) Other() (int, error) {
	if p.Client != p.Server {
		return 0, fmt.Errorf("all clients run on CPU %d, and the servers on another one", p.Client)
	}
	usable, err := usableCPUs()
	if err != nil {
		return 0, err
	}
	i := slices.IndexFunc(usable, func(cpu int) bool { return cpu != p.Server })
	if i < 0 {
		return 0, errors.New("this process may use one CPU only")
	}
	return usable[i], nil
}

// SetPriority gives all threads of a process a real-time priority (SCHED_FIFO, 1 to 99), which threads started later
// inherit. It ignores a process that has ended.
func SetPriority(pid, priority int) error {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/[0-9]*", pid))
	if err != nil {
		return err
	}
	for _, thread := range threads {
		tid, err := strconv.Atoi(filepath.Base(thread))
		if err != nil {
			return err
		}
		attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: uint32(priority)}
		if err := unix.SchedSetAttr(tid, &attr, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("set real-time priority of process %d: %w", pid, err)
		}
	}
	return nil
}

// Quota is the CPU quota of this process (cpu.max): the quota of its control group and of the groups above it that
// are visible at /sys/fs/cgroup.
type Quota struct {
	facts facts
	group string // "" if there is none
}

// FindQuota finds the control group. Without a control group, the quota is unlimited.
func FindQuota() Quota { return findQuota(os.DirFS("/")) }

func findQuota(root fs.FS) Quota {
	q := Quota{facts: facts{root}}
	for line := range strings.Lines(q.facts.text("proc/self/cgroup")) { // cgroups(7)
		if group, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok && !strings.HasPrefix(group, "/..") {
			q.group = group
		}
	}
	return q
}

// Throttled returns the time for which quotas have stopped CPUs since the groups exist.
func (q Quota) Throttled() (sum time.Duration) {
	const mount = "sys/fs/cgroup"
	for dir := path.Join(mount, q.group); q.group != "" && len(dir) >= len(mount); dir = path.Dir(dir) {
		for line := range strings.Lines(q.facts.text(path.Join(dir, "cpu.stat"))) {
			if value, ok := strings.CutPrefix(strings.TrimSpace(line), "throttled_usec "); ok {
				n, _ := strconv.ParseInt(value, 10, 64)
				sum += time.Duration(n) * time.Microsecond
			}
		}
	}
	return sum
}
