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

// Timer slack: how late the kernel may wake a thread, to save timer interrupts.
const (
	runtimeSlack = 20 * time.Millisecond
	loadSlack    = 50 * time.Microsecond // the kernel's default
)

// prepareProcess binds every thread of the process to a CPU, unless it is negative. It lets the kernel wake the
// threads of the Go runtime late, at a tick that comes anyway: the runtime's monitor would else wake up to some
// thousand times a second on the CPU that carries load. That takes CAP_SYS_NICE; without, figures have a little more
// noise. Later threads inherit both.
func prepareProcess(cpu int) error {
	prepared := map[string]bool{}
	for known := -1; known < len(prepared); { // until no thread is new: one may have begun since the list was read
		known = len(prepared)
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return fmt.Errorf("list threads: %w", err)
		}
		for _, task := range tasks {
			if prepared[task.Name()] {
				continue
			}
			prepared[task.Name()] = true
			tid, err := strconv.Atoi(task.Name())
			if err != nil {
				return fmt.Errorf("thread id %q: %w", task.Name(), err)
			}
			if err := pinThread(tid, cpu); err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
			_ = os.WriteFile("/proc/"+task.Name()+"/timerslack_ns", []byte(strconv.FormatInt(int64(runtimeSlack), 10)), 0)
		}
	}
	return nil
}

// pinThread binds a thread to a CPU, unless it is negative; 0 is the calling thread.
func pinThread(tid, cpu int) error {
	if cpu < 0 {
		return nil
	}
	var set unix.CPUSet
	set.Set(cpu)
	if err := unix.SchedSetaffinity(tid, &set); err != nil {
		return fmt.Errorf("pin to CPU %d: %w", cpu, err)
	}
	return nil
}

type threadConfig struct {
	CPU      int // negative: any
	Priority int // of SCHED_FIFO: the thread runs before threads of lower priority until it blocks; 0: none
}

func (c threadConfig) run(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlock, so that the runtime ends the thread
		err := c.apply()
		if err == nil {
			err = fn()
		}
		done <- err
	}()
	return <-done
}

func (c threadConfig) apply() error {
	if err := pinThread(0, c.CPU); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(loadSlack), 0, 0, 0); err != nil {
		return fmt.Errorf("set timer slack: %w", err)
	}
	if c.Priority == 0 {
		return nil
	}
	attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: uint32(c.Priority)}
	if err := unix.SchedSetAttr(0, &attr, 0); err != nil {
		return fmt.Errorf("set real-time priority %d: %w", c.Priority, err)
	}
	return nil
}

// sleepUntil blocks the calling thread until a time. It returns at once if the time
// has passed, so a sender that is late catches up.
func sleepUntil(t time.Time) {
	if ahead := time.Until(t); ahead > 0 {
		ts := unix.NsecToTimespec(int64(ahead))
		_ = unix.Nanosleep(&ts, nil) // a signal may end it a little early
	}
}
