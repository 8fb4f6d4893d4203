// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// pinProcess binds every thread of the process to a CPU; threads that come
// later inherit it. A negative CPU leaves them free.
func pinProcess(cpu int) error {
	if cpu < 0 {
		return nil
	}
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return fmt.Errorf("list threads: %w", err)
	}
	for _, task := range tasks {
		tid, err := strconv.Atoi(task.Name())
		if err != nil {
			return fmt.Errorf("thread id %q: %w", task.Name(), err)
		}
		if err := pinThread(tid, cpu); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	return nil
}

// pinThread binds a thread, 0 being the calling one, to a CPU.
func pinThread(tid, cpu int) error {
	var set unix.CPUSet
	set.Set(cpu)
	if err := unix.SchedSetaffinity(tid, &set); err != nil {
		return fmt.Errorf("pin to CPU %d: %w", cpu, err)
	}
	return nil
}

// setPriority makes the calling thread run before all threads of a lower
// priority, and until it blocks (SCHED_FIFO); 0 leaves it as it is.
func setPriority(priority int) error {
	if priority == 0 {
		return nil
	}
	attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: uint32(priority)}
	if err := unix.SchedSetAttr(0, &attr, 0); err != nil {
		return fmt.Errorf("set real-time priority %d: %w", priority, err)
	}
	return nil
}

// seat is where and how a thread runs.
type seat struct {
	cpu      int // negative: any
	priority int // of SCHED_FIFO; 0: an ordinary thread
}

// run runs fn on an OS thread of its own, bound to the seat, and waits for it.
// The thread ends with fn.
func (s seat) run(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		// Never unlocked: the thread is not to be used again.
		runtime.LockOSThread()
		if s.cpu >= 0 {
			if err := pinThread(0, s.cpu); err != nil {
				done <- err
				return
			}
		}
		if err := setPriority(s.priority); err != nil {
			done <- err
			return
		}
		done <- fn()
	}()
	return <-done
}
