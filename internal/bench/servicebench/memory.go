// SPDX-License-Identifier: Apache-2.0

package servicebench

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// settleTime is how long the kernel gets to free what was deleted.
const settleTime = 200 * time.Millisecond

// kernelMemory returns the bytes of memory in which the kernel keeps rules and maps: slabs that
// it can't reclaim, vmalloc and per-CPU areas. Those of other programs are in it.
func kernelMemory() (uint64, error) {
	time.Sleep(settleTime)
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	return parseMeminfo(string(text))
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
