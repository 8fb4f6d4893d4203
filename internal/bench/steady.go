// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"mustang/internal/lab"
)

// helperPriority is the real-time priority of programs that carry the packets of
// a lab, such as the relay of a TUN device: that of a server, so that each stage of
// the path takes what the one before has left for it, in turn.
const helperPriority = serverPriority

// settle prepares the labs that stand for counting.
func (s *stand) settle() error {
	if !s.counting {
		return nil
	}
	for _, l := range s.labs {
		if err := s.steady(l); err != nil {
			return err
		}
	}
	return nil
}

// steady makes the programs that carry a lab's packets real-time ones. The agents
// look after themselves.
func (s *stand) steady(l *lab.Lab) error {
	inodes := map[uint64]bool{}
	for _, place := range l.Places() {
		ns, err := l.Namespace(place)
		if err != nil {
			return err
		}
		inode, err := ns.Inode()
		if err != nil {
			return err
		}
		inodes[inode] = true
	}
	agents := map[int]bool{os.Getpid(): true}
	for _, a := range s.agents {
		agents[a.PID()] = true
	}
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return err
	}
	for _, dir := range processes {
		pid, err := strconv.Atoi(filepath.Base(dir))
		var stat unix.Stat_t
		if err != nil || agents[pid] || unix.Stat(dir+"/ns/net", &stat) != nil || !inodes[stat.Ino] {
			continue
		}
		if err := setPriorities(pid, helperPriority); err != nil {
			return err
		}
	}
	return nil
}

// setPriorities makes all threads of a process real-time ones. Threads that they
// start inherit it.
func setPriorities(pid, priority int) error {
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
