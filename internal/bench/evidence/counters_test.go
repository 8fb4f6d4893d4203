// SPDX-License-Identifier: Apache-2.0

package evidence

import (
	"strings"
	"testing"

	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// TestReplacedDeviceIsFound replaces a device between two readings: its counters begin anew, and prove nothing.
func TestReplacedDeviceIsFound(t *testing.T) {
	pod, other := testkit.VethPair(t)
	read := func() counters {
		t.Helper()
		c, err := readCounters(nil)
		if err == nil {
			err = c.readDevices("pod-a", pod)
		}
		testkit.Succeed(t, err)
		return c
	}
	before := read()
	if found := read().since(before).Findings; len(found) > 0 {
		t.Errorf("the same device: %v", found)
	}
	device := Device{Place: "pod-a", Name: "left"}
	testkit.Succeed(t, rtnl.DeleteInChild(pod, before.devices[device].index))
	if err := rtnl.AddVeth(rtnl.VethEnd{Namespace: pod, Name: "left"}, rtnl.VethEnd{Namespace: other, Name: "right"},
		1500); err != nil {
		t.Fatal(err)
	}
	found := strings.Join(read().since(before).Findings, "; ")
	testkit.Check(t, strings.Contains(found, "left in pod-a was replaced"), "found %q", found)
}
