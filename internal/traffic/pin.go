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

// onThread runs fn on an OS thread of its own, bound to a CPU, and waits for
// it. The thread ends with fn.
func onThread(cpu int, fn func() error) error {
	done := make(chan error, 1)
	go func() {
		// Never unlocked: the thread is not to be used again.
		runtime.LockOSThread()
		if cpu >= 0 {
			if err := pinThread(0, cpu); err != nil {
				done <- err
				return
			}
		}
		done <- fn()
	}()
	return <-done
}
