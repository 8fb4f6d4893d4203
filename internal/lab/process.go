// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/nl"
)

// endTimeout is how long killed processes may take to be gone.
const endTimeout = 5 * time.Second

// endProcesses kills what runs in the named network namespaces or in the control
// group, and waits until it is gone. All of it was started there, since they are
// the lab's.
func endProcesses(namespaces []string, cgroup string) error {
	inodes := map[uint64]bool{}
	for _, name := range namespaces {
		ns, err := nl.OpenNamespace(filepath.Join(nl.Directory, name))
		if err != nil {
			continue // a name without a namespace, left by a killed process
		}
		inode, err := ns.Inode()
		if err == nil {
			inodes[inode] = true
		}
		_ = ns.Close()
	}
	deadline := time.Now().Add(endTimeout)
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		pids, err := processesIn(inodes, cgroup)
		if err != nil || len(pids) == 0 {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes %v outlive kill -9", pids)
		}
		for _, pid := range pids {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("kill %d: %w", pid, err)
			}
		}
		time.Sleep(wait)
	}
}

// processesIn returns the processes other than this one whose network namespace
// is among the inodes, or that are in the control group.
func processesIn(inodes map[uint64]bool, cgroup string) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		// A process that ends while we look, and a zombie, have no namespace.
		var stat unix.Stat_t
		if unix.Stat(filepath.Join("/proc", entry.Name(), "ns/net"), &stat) != nil {
			continue
		}
		if inodes[stat.Ino] || inCgroup(entry.Name(), cgroup) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}
