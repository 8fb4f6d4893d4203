// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"mustang/internal/testkit"
)

// cyclesVariable says how many times TestCycles goes round. With 10000 it takes some
// minutes, and what it logs of the kernel's memory means something on a machine that
// does nothing else.
const cyclesVariable = "MUSTANG_CNI_CYCLES"

// TestCycles plugs a pod in and out again and again: nothing grows.
func TestCycles(t *testing.T) {
	cycles := 60
	if text := os.Getenv(cyclesVariable); text != "" {
		var err error
		if cycles, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	for _, mode := range crashModes {
		t.Run(mode, func(t *testing.T) {
			f := newFixture(t)
			f.plugin.Cgroup = testkit.Cgroup(t)
			p := f.pod("pod", network("net", mode, `,"services":"socket"`))
			round := func(i int) {
				p.request.ContainerID = fmt.Sprint("c", i)
				f.must(f.add(p))
				f.must(f.del(p))
			}
			for i := range 10 { // caches fill
				round(i)
			}
			before, files, memory := f.left(), settledFiles(t), kernelMemory(t)
			for i := range cycles {
				round(i)
			}
			f.same(before, fmt.Sprint(cycles, " cycles"))
			// The last devices that were deleted hold a socket until the kernel is done.
			testkit.Eventually(t, 10*time.Second, func() error {
				if now := openFiles(t); now > files {
					return fmt.Errorf("%d open files before, %d after", files, now)
				}
				return nil
			})
			t.Logf("%d cycles: the kernel's unreclaimable memory went from %d to %d KiB", cycles, memory, kernelMemory(t))
		})
	}
}

// settledFiles counts them when the number has been the same for a while.
func settledFiles(t *testing.T) int {
	t.Helper()
	for last := openFiles(t); ; {
		time.Sleep(200 * time.Millisecond)
		now := openFiles(t)
		if now == last {
			return now
		}
		last = now
	}
}

// openFiles counts the files that this process has open.
func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// kernelMemory is what the kernel has allocated for itself and can't give back, in
// KiB.
func kernelMemory(t *testing.T) (sum int) {
	t.Helper()
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if fields[0] == "SUnreclaim:" || fields[0] == "Percpu:" || fields[0] == "KernelStack:" {
			n, err := strconv.Atoi(fields[1])
			if err != nil {
				t.Fatal(err)
			}
			sum += n
		}
	}
	return sum
}
