// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The kernel frees what was deleted in the background. Its memory has settled when it has shrunk by
// no more than settledBytes in settleTime; nobody waits longer than settleTimeout.
const (
	settleTime    = 500 * time.Millisecond
	settleTimeout = 20 * time.Second
	settledBytes  = 64 << 10
)

// kernelMemory returns the bytes of memory in which the kernel keeps rules and maps, once it has
// settled: slabs that it can't reclaim, vmalloc and per-CPU areas. Those of other programs are in it.
func kernelMemory() (uint64, error) {
	last := uint64(math.MaxUint64)
	for deadline := time.Now().Add(settleTimeout); ; time.Sleep(settleTime) {
		text, err := os.ReadFile("/proc/meminfo")
		if err != nil {
			return 0, err
		}
		now, err := parseMeminfo(string(text))
		if err != nil || now+settledBytes >= last || time.Now().After(deadline) {
			return now, err
		}
		last = now
	}
}

// parseMeminfo returns the sum of the areas of kernelMemory.
func parseMeminfo(text string) (sum uint64, err error) {
	names := []string{"SUnreclaim", "VmallocUsed", "Percpu"}
	found := 0
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(line, ":")
		if !slices.Contains(names, name) {
			continue
		}
		kilobytes, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/meminfo: %s: %w", name, err)
		}
		sum += kilobytes << 10
		found++
	}
	if found != len(names) {
		return 0, fmt.Errorf("/proc/meminfo lacks one of %s", strings.Join(names, ", "))
	}
	return sum, nil
}
