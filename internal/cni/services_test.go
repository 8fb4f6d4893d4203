// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"fmt"
	"testing"

	"mustang/internal/testkit"
)

// TestServices reaches a service from a pod in each way that there is: by a socket
// that is translated, or by packets of one that is not.
func TestServices(t *testing.T) {
	for _, mode := range modes() {
		for _, test := range []struct {
			services         string
			sockets, packets bool
		}{
			{ServicesSocket, true, false},
			{ServicesTC, false, true},
			{ServicesBoth, true, true},
			{ServicesOff, false, false},
		} {
			t.Run(mode.Name()+"/"+test.services, func(t *testing.T) {
				t.Parallel()
				testkit.RequireMode(t, mode.Probe())
				f := newFixture(t)
				f.plugin.Cgroup = testkit.Cgroup(t)
				f.must(f.add(f.pod("other", network("net", mode.Name(), `,"services":"both"`)))) // has the datapath made
				config := network("net", mode.Name(), fmt.Sprintf(`,"services":%q`, test.services))
				a, b := f.added("a", config), f.added("b", config)
				for i, frontend := range []string{"10.96.0.9:80", "[fd00:96::9]:80"} {
					service := f.service(frontend, "tcp", a, a.ips()[i])
					if err := f.dialFrom(f.host, "tcp", service); err != nil {
						t.Errorf("%s from the host: %v", service, err)
					}
					err := f.dialFrom(b.Namespace, "tcp", service)
					if works := err == nil; works != (test.sockets || test.packets) {
						t.Errorf("%s in the control group: %v", service, err)
					}
					if err == nil {
						_, err = testkit.RoundTrip(t, b.Namespace, "tcp", service.String(), []byte("x"))
						if works := err == nil; works != test.packets {
							t.Errorf("%s outside of the control group: %v", service, err)
						}
					}
				}
				for _, p := range []*pod{a, b} {
					f.must(f.check(p))
					f.must(f.del(p))
				}
			})
		}
	}
}
