// SPDX-License-Identifier: Apache-2.0

package host

import (
	"testing"
	"testing/fstest"
	"time"
)

// TestQuota reads what quotas took in each layout of control groups.
func TestQuota(t *testing.T) {
	const v2 = "30 20 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
	const hybrid = "31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n" +
		"32 30 0:28 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n33 30 0:29 / /cgroup2 rw - cgroup2 cgroup2 rw\n"
	for name, test := range map[string]struct {
		mounts, groups string
		stats          map[string]string
		want           time.Duration
	}{
		"none": {"20 1 8:1 / / rw - ext4 /dev/sda rw\n", "", nil, 0},
		"v2, with the groups above": {v2, "0::/a.slice/b\n", map[string]string{
			"sys/fs/cgroup/cpu.stat":           "usage_usec 9\n",
			"sys/fs/cgroup/a.slice/cpu.stat":   "usage_usec 9\nnr_periods 9\nnr_throttled 2\nthrottled_usec 2000\n",
			"sys/fs/cgroup/a.slice/b/cpu.stat": "nr_throttled 1\nthrottled_usec 500",
			"sys/fs/cgroup/a.slice/c/cpu.stat": "throttled_usec 70000\n",
		}, 2500 * time.Microsecond},
		"v1 and v2": {hybrid, "4:cpuset:/\n3:cpu,cpuacct:/a\n0::/a\n", map[string]string{
			"sys/fs/cgroup/cpu,cpuacct/a/cpu.stat": "nr_periods 9\nnr_throttled 1\nthrottled_time 3000000\n",
			"sys/fs/cgroup/cpuset/cpu.stat":        "throttled_time 1\n", "cgroup2/a/cpu.stat": "usage_usec 1\n",
		}, 3 * time.Millisecond},
		"a container's group, and another's": {
			"30 20 0:26 /other /mnt rw - cgroup2 c rw\n31 20 0:26 /own /sys/fs/cgroup rw - cgroup2 c rw\n", "0::/own\n",
			map[string]string{"sys/fs/cgroup/cpu.stat": "throttled_usec 7\n", "mnt/cpu.stat": "throttled_usec 9\n"}, 7 * time.Microsecond,
		},
		"outside of the mount": {v2, "0::/../b\n", map[string]string{"sys/fs/b/cpu.stat": "throttled_usec 7\n"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			root := fstest.MapFS{"proc/self/mountinfo": {Data: []byte(test.mounts)}, "proc/self/cgroup": {Data: []byte(test.groups)}}
			for file, text := range test.stats {
				root[file] = &fstest.MapFile{Data: []byte(text)}
			}
			if got := findQuota(root).Throttled(); got != test.want {
				t.Errorf("%v, want %v", got, test.want)
			}
		})
	}
}
