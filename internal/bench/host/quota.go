// SPDX-License-Identifier: Apache-2.0

package host

import (
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Quota is the CPU quota of this process: that of its control group (cpu.max, or cpu.cfs_quota_us of cgroup v1) and those of
// the groups above it that it can see.
type Quota struct {
	facts facts
	files []string // cpu.stat of each group
}

// FindQuota finds the control groups. Without any there is no quota.
func FindQuota() Quota { return findQuota(os.DirFS("/")) }

func findQuota(root fs.FS) Quota {
	q := Quota{facts: facts{root}}
	for line := range strings.Lines(q.facts.text("proc/self/mountinfo")) { // proc_pid_mountinfo(5)
		fields := strings.Fields(line)
		at := slices.Index(fields, "-")
		if at < 5 || len(fields) < at+4 {
			continue
		}
		kind, options := fields[at+1], strings.Split(fields[at+3], ",")
		if kind != "cgroup2" && (kind != "cgroup" || !slices.Contains(options, "cpu")) {
			continue
		}
		below, ok := strings.CutPrefix(q.group(kind), strings.TrimSuffix(fields[3], "/"))
		if !ok || below != "" && below[0] != '/' || strings.HasPrefix(below, "/..") {
			continue // a mount of other groups
		}
		mount := strings.TrimPrefix(fields[4], "/")
		for dir := path.Join(mount, below); len(dir) >= len(mount); dir = path.Dir(dir) {
			if file := path.Join(dir, "cpu.stat"); !slices.Contains(q.files, file) {
				q.files = append(q.files, file)
			}
		}
	}
	return q
}

// group returns the path of this process's group in a hierarchy, see cgroups(7).
func (q Quota) group(kind string) string {
	for line := range strings.Lines(q.facts.text("proc/self/cgroup")) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) == 3 && (kind == "cgroup2" && parts[0] == "0" ||
			kind == "cgroup" && slices.Contains(strings.Split(parts[1], ","), "cpu")) {
			return parts[2]
		}
	}
	return "none"
}

// Throttled returns the time for which quotas have stopped CPUs since the groups exist.
func (q Quota) Throttled() (sum time.Duration) {
	for _, file := range q.files {
		for line := range strings.Lines(q.facts.text(file)) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
			n, err := strconv.ParseInt(value, 10, 64)
			switch {
			case err != nil:
			case name == "throttled_usec":
				sum += time.Duration(n) * time.Microsecond
			case name == "throttled_time": // of cgroup v1
				sum += time.Duration(n)
			}
		}
	}
	return sum
}
