// SPDX-License-Identifier: Apache-2.0

package host

import (
	"testing"
	"testing/fstest"
	"time"

	"mustang/internal/testkit"
)

// TestQuota reads what quotas took of control groups.
func TestQuota(t *testing.T) {
	for name, test := range map[string]struct {
		groups string
		stats  map[string]string
		want   time.Duration
	}{
		"none": {"3:cpu,cpuacct:/a\n", map[string]string{"sys/fs/cgroup/cpu.stat": "throttled_usec 7\n"}, 0},
		"with the groups above": {"0::/a.slice/b\n", map[string]string{
			"sys/fs/cgroup/cpu.stat":           "usage_usec 9\n",
			"sys/fs/cgroup/a.slice/cpu.stat":   "usage_usec 9\nnr_periods 9\nnr_throttled 2\nthrottled_usec 2000\n",
			"sys/fs/cgroup/a.slice/b/cpu.stat": "nr_throttled 1\nthrottled_usec 500",
			"sys/fs/cgroup/a.slice/c/cpu.stat": "throttled_usec 70000\n",
		}, 2500 * time.Microsecond},
		"a container's group": {"0::/\n", map[string]string{"sys/fs/cgroup/cpu.stat": "throttled_usec 7\n",
			"sys/fs/cpu.stat": "throttled_usec 9\n"}, 7 * time.Microsecond},
		"outside of the mount": {"0::/../b\n", map[string]string{"sys/fs/cgroup/b/cpu.stat": "throttled_usec 7\n"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			root := fstest.MapFS{"proc/self/cgroup": {Data: []byte(test.groups)}}
			for file, text := range test.stats {
				root[file] = &fstest.MapFile{Data: []byte(text)}
			}
			got := findQuota(root).Throttled()
			testkit.Check(t, got == test.want, "%v, want %v", got, test.want)
		})
	}
}
