// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"testing"

	"mustang/internal/testkit"
)

// TestLinkNames parses the name of each link that can be pinned.
func TestLinkNames(t *testing.T) {
	for _, point := range []AttachPoint{AttachHost, AttachTun, AttachNetkit, AttachPod, AttachUplink, AttachCgroup} {
		for _, h := range point.Hooks() {
			want := Link{Hook: h, ID: 1 << 40}
			if point == AttachUplink {
				want.IfIndex = 7
			}
			got, ok := (Link{}).Parse(want.String())
			testkit.Check(t, ok && got == want, "%s: %+v, %v; want %+v", want, got, ok, want)
		}
	}
	for _, name := range []string{
		"", "-", "3", "3-host", "3-host-connect4", "x-host-from_pod", "3-uplink-from_uplink", "3-cgroup-connect4",
		"03-host-from_pod",
		"cgroup-x-connect4", "cgroup-7-connect5", "cgroup-7", "cgroup-", "cgroup-7-from_pod",
		"uplink-1-from_uplink", "uplink-1-2-from_pod", "uplink-1-x-from_uplink", "uplink-1--2-from_uplink",
	} {
		k, ok := (Link{}).Parse(name)
		testkit.Check(t, !ok, "%q is parsed as %+v", name, k)
	}
}
