// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"fmt"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"mustang/internal/netns"
	"mustang/internal/testkit"
)

// TestCycles attaches and detaches a pod many times: nothing grows.
func TestCycles(t *testing.T) {
	cycles := testkit.Repeats(60, 500)
	for _, mode := range crashModes {
		t.Run(mode, func(t *testing.T) {
			f := newFixture(t)
			f.plugin.Cgroup = testkit.Cgroup(t)
			p := f.pod("pod", network("net", mode, `,"services":"socket"`))
			round := func(i int) {
				p.request.ContainerID = fmt.Sprint("c", i)
				f.must(f.add(p))
				f.must(f.del(p))
			}
			for i := range 10 { // caches fill
				round(i)
			}
			before, files := f.left(), openFiles(t)
			for i := range cycles {
				round(i)
			}
			f.same(before, fmt.Sprint(cycles, " cycles"))
			// The last devices that were deleted hold a socket until the kernel is done.
			testkit.Eventually(t, 10*time.Second, func() error {
				if now := openFiles(t); now > files {
					return fmt.Errorf("%d open files before, %d after", files, now)
				}
				return nil
			})
		})
	}
}

// openFiles counts the open files of the process.
func openFiles(t *testing.T) int {
	t.Helper()
	entries := testkit.Must(os.ReadDir("/proc/self/fd"))(t)
	return len(entries)
}

// TestAtOnce runs 100 ADDs at once, which create the network as well, then 100 DELs.
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
				f.must(netns.Delete(p.Name()))
			}
		})
	}
}

// atOnce calls do for all pods at once.
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
