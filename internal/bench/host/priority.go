// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Processes returns the IDs of the processes in the network namespaces with these
// inodes.
func Processes(namespaces map[uint64]bool) ([]int, error) {
	entries, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, dir := range entries {
		var stat unix.Stat_t
		if unix.Stat(dir+"/ns/net", &stat) != nil || !namespaces[stat.Ino] {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil && pid != os.Getpid() {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// SetPriority gives all threads of a process a real-time priority (SCHED_FIFO, 1 to
// 99), which threads started later inherit. A process that has ended is no error.
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
