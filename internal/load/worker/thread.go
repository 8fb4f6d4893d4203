// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// pinProcess binds every thread of the process to a CPU; later threads inherit it. A
// negative CPU binds nothing.
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

// Timer slack: how late the kernel may wake a thread, to save timer interrupts.
const (
	runtimeSlack = 20 * time.Millisecond
	loadSlack    = 50 * time.Microsecond // the kernel's default
)

// relaxRuntime lets the kernel wake the threads of the Go runtime late, at a tick that
// comes anyway; later threads inherit it. The runtime's monitor would else wake up to
// some thousand times a second on the CPU that carries load. It takes CAP_SYS_NICE;
// without, figures have a little more noise.
func relaxRuntime() {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return
	}
	for _, task := range tasks {
		_ = os.WriteFile("/proc/"+task.Name()+"/timerslack_ns", []byte(strconv.FormatInt(int64(runtimeSlack), 10)), 0)
	}
}

// pinThread binds a thread to a CPU; 0 is the calling thread.
func pinThread(tid, cpu int) error {
	var set unix.CPUSet
	set.Set(cpu)
	if err := unix.SchedSetaffinity(tid, &set); err != nil {
		return fmt.Errorf("pin to CPU %d: %w", cpu, err)
	}
	return nil
}

// setPriority makes the calling thread run before all threads of a lower priority,
// and until it blocks (SCHED_FIFO). Priority 0 changes nothing.
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

// threadConfig is the CPU and the priority of threads that carry load.
type threadConfig struct {
	CPU      int // negative: any
	Priority int // of SCHED_FIFO; 0: an ordinary thread
}

// run runs fn on an OS thread of its own and waits for it. The thread ends with fn.
func (c threadConfig) run(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		// Never unlocked, so the runtime ends the thread.
		runtime.LockOSThread()
		if c.CPU >= 0 {
			if err := pinThread(0, c.CPU); err != nil {
				done <- err
				return
			}
		}
		if err := unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(loadSlack), 0, 0, 0); err != nil {
			done <- fmt.Errorf("set timer slack: %w", err)
			return
		}
		if err := setPriority(c.Priority); err != nil {
			done <- err
			return
		}
		done <- fn()
	}()
	return <-done
}

// sleepUntil blocks the calling thread until a time. It returns at once if the time
// has passed, so a sender that is late catches up.
func sleepUntil(t time.Time) {
	if ahead := time.Until(t); ahead > 0 {
		ts := unix.NsecToTimespec(int64(ahead))
		_ = unix.Nanosleep(&ts, nil) // a signal may end it a little early
	}
}
