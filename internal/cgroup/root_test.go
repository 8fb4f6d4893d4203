// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"testing"
)

func TestRoot(t *testing.T) {
	const v1 = "33 31 0:30 / /sys/fs/cgroup/cpuacct rw,relatime - cgroup cgroup rw,cpuacct\n"
	for _, row := range []struct{ name, text, want string }{
		{"version 2", "25 20 0:22 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n", "/sys/fs/cgroup"},
		{"hybrid", v1 + "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n", "/sys/fs/cgroup/unified"},
		{"a part first", "1 2 0:3 /a /mnt rw - cgroup2 x rw\n2 2 0:3 / /cg rw - cgroup2 x rw\n", "/cg"},
		{"only a part", v1 + "1 2 0:3 /a /mnt rw - cgroup2 x rw\n", "/mnt"},
		{"a space", `1 2 0:3 / /my\040groups\134 rw shared:1 master:2 - cgroup2 x rw` + "\n", `/my groups\`},
		{"version 1", v1, ""},
		{"cut off", "1 2 0:3 / - cgroup2\n", ""},
		{"nothing", "", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			got, err := findRoot(row.text)
			if got != row.want || (err != nil) != (row.want == "") {
				t.Errorf("%q, %v; want %q", got, err, row.want)
			}
			if err != nil && !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("%v does not match ErrUnsupported", err)
			}
		})
	}
}
