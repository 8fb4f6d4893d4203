// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"fmt"
	"testing"

	"mustang/internal/podlink"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// TestParentMTUChanges changes the MTU of the parent: new pods have it, and CHECK takes those of before as they are.
func TestParentMTUChanges(t *testing.T) {
	eachMode(t, func(t *testing.T, f *fixture, mode podlink.Mode) {
		config := network("net", mode.Name(), "")
		var pods []*pod
		for i, mtu := range []int{1400, 9000, 1500, 1300} {
			testkit.Command(t, f.host, fmt.Sprint("ip link set uplink mtu ", mtu))
			p := f.added(fmt.Sprint("p", i), config)
			device, err := rtnl.In(p.Namespace).Device("eth0")
			if want := min(1500, mtu); err != nil || device.MTU != want {
				t.Errorf("the parent has MTU %d, the pod %d, want %d, %v", mtu, device.MTU, want, err)
			}
			if i > 0 { // the kernel raises no MTU
				pods = append(pods, p)
			}
			for _, p := range pods {
				f.must(f.check(p))
			}
			f.reach(p.Namespace, f.host, gateway(p, 0))
		}
		for _, p := range pods {
			f.must(f.del(p))
		}
	})
}
