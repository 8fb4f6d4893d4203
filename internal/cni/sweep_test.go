// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"fmt"
	"os"
	"testing"
	"time"

	"mustang/internal/nl"
	"mustang/internal/testkit"
)

// TestSweep loses records, leases and what the runtime was told, all at once. DEL finds
// what the datapath has by the pod's namespace, or by its device; GC finds
// pods that are gone. A pod of another network stays as it is.
func TestSweep(t *testing.T) {
	for _, test := range []struct {
		mode, services string
		// byDEL is set where DEL can tell that the device is the attachment's: by its name.
		byDEL bool
	}{
		{"veth", ServicesBoth, true}, {"veth", ServicesSocket, true}, {"bridge", ServicesTC, true},
		{"macvlan", ServicesTC, false}, {"macvlan", ServicesSocket, true},
	} {
		t.Run(test.mode+"/"+test.services, func(t *testing.T) {
			f := newFixture(t)
			f.plugin.Cgroup = testkit.Cgroup(t)
			services := `,"services":"` + test.services + `"`
			config := network("net", test.mode, services)
			kept := f.added("kept", network("kept", "veth", services))
			f.must(f.del(f.added("first", config))) // makes what stays
			before := f.left()
			lost := func(more string) *pod {
				p := f.added("a", network("net", test.mode, services+more))
				for _, dir := range []string{f.plugin.runDir("net"), f.plugin.stateDir("net")} {
					f.must(os.RemoveAll(dir))
				}
				return p
			}
			if test.byDEL {
				f.must(f.del(lost("")))
				f.nothingMore(before)
			}
			if test.mode != "macvlan" {
				p := lost(`,"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80}]}`)
				f.uplinks(1)
				f.must(f.del(p))
				f.nothingMore(before)
				f.uplinks(0)
			}
			p := lost("")
			f.must(nl.DeleteNamespace(p.Name()))
			f.must(p.Close())
			testkit.Eventually(t, 10*time.Second, func() error { // the kernel takes devices away some time after their namespace
				if err := f.gc(config); err != nil {
					return err
				}
				if more := f.more(before); len(more) > 0 {
					return fmt.Errorf("left is %q", more)
				}
				return nil
			})
			f.must(f.check(kept))
		})
	}
}
