// SPDX-License-Identifier: Apache-2.0

package host

import (
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"time"
)

// Quota is the CPU quota of this process (cpu.max): the quota of its control group and of the groups above it that
// are visible at /sys/fs/cgroup.
type Quota struct {
	facts facts
	group string // "" if there is none
}

// FindQuota finds the control group. Without a control group, the quota is unlimited.
func FindQuota() Quota { return findQuota(os.DirFS("/")) }

func findQuota(root fs.FS) Quota {
	q := Quota{facts: facts{root}}
	for line := range strings.Lines(q.facts.text("proc/self/cgroup")) { // cgroups(7)
		if group, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok && !strings.HasPrefix(group, "/..") {
			q.group = group
		}
	}
	return q
}

// Throttled returns the time for which quotas have stopped CPUs since the groups exist.
func (q Quota) Throttled() (sum time.Duration) {
	const mount = "sys/fs/cgroup"
	for dir := path.Join(mount, q.group); q.group != "" && len(dir) >= len(mount); dir = path.Dir(dir) {
		for line := range strings.Lines(q.facts.text(path.Join(dir, "cpu.stat"))) {
			if value, ok := strings.CutPrefix(strings.TrimSpace(line), "throttled_usec "); ok {
				n, _ := strconv.ParseInt(value, 10, 64)
				sum += time.Duration(n) * time.Microsecond
			}
		}
	}
	return sum
}
