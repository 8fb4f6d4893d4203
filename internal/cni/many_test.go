// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"fmt"
	"net/netip"
	"sync"
	"testing"

	"mustang/internal/nl"
	"mustang/internal/testkit"
)

// TestAtOnce has 100 ADDs at once, which make the network too, then as many DELs.
func TestAtOnce(t *testing.T) {
	for _, mode := range crashModes {
		t.Run(mode, func(t *testing.T) {
			const pods = 100
			f := newFixture(t)
			f.plugin.Cgroup = testkit.Cgroup(t)
			config := network("net", mode, `,"services":"socket"`)
			var all []*pod
			for i := range pods {
				all = append(all, f.pod(fmt.Sprint("p", i), config))
			}
			atOnce(t, all, f.add)
			seen := map[netip.Addr]bool{}
			for _, p := range all {
				for _, ip := range p.ips() {
					if seen[ip] {
						t.Errorf("%s is given out twice", ip)
					}
					seen[ip] = true
				}
			}
			f.reach(all[0].Namespace, all[pods-1].Namespace, all[pods-1].ips()[0])
			f.reach(all[pods/2].Namespace, f.host, gateway(all[0], 0))
			atOnce(t, all, f.del)
			after := f.left()
			f.must(f.del(f.added("one", config)))
			f.same(after, "one more")
			for _, p := range all {
				f.must(p.Close())
				f.must(nl.DeleteNamespace(p.Name()))
			}
		})
	}
}

// atOnce does something with all pods at once.
func atOnce(t *testing.T, pods []*pod, do func(*pod) error) {
	t.Helper()
	var wait sync.WaitGroup
	errs := make([]error, len(pods))
	for i, p := range pods {
		wait.Go(func() { errs[i] = do(p) })
	}
	wait.Wait()
	for i, err := range errs {
		if err != nil {
			t.Fatalf("%s: %v", pods[i].Name(), err)
		}
	}
}
