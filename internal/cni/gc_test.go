// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"mustang/internal/cni/netconf"
	"mustang/internal/cni/record"
	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// TestGC keeps valid attachments and deletes all others of the network, with and without
// their namespaces, and without records.
func TestGC(t *testing.T) {
	t.Parallel()
	for _, mode := range crashModes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			f := newCrashFixture(t, mode)
			config := network("net", mode, `,"services":"both"`)
			kept := f.added("kept", config)
			other := f.added("other", network("elsewhere", "veth", ""))
			before := f.left()
			stale, gone := f.added("stale", config), f.added("gone", everything(mode))
			f.must(netns.Delete(gone.Name()))
			f.must(gone.Close())
			f.must(f.gc(config, kept))
			f.same(before, "GC")
			if _, err := rtnl.In(stale.Namespace).Device("eth0"); err == nil {
				t.Error("the stale pod has its device still")
			}
			f.must(f.check(kept))
			f.must(f.check(other))
			f.must(f.gc(config, kept))
			f.same(before, "GC again")
		})
	}
}

// TestGCWithoutRecords deletes attachments by their addresses and device names.
func TestGCWithoutRecords(t *testing.T) {
	for _, mode := range []string{"veth", "bridge"} {
		t.Run(mode, func(t *testing.T) {
			f := newFixture(t)
			config := network("net", mode, "")
			f.must(f.del(f.added("first", config)))
			before := f.left()
			f.added("a", config)
			b := f.added("b", config)
			f.must(os.RemoveAll(filepath.Dir(f.plugin.records().Path("net", record.Owner{}))))
			f.must(f.gc(config, b))
			reservations, err := f.plugin.addresses("net")
			f.must(err)
			leases, err := reservations.Leases()
			f.must(err)
			if len(leases) != 2 || leases[0].Owner.ContainerID != "b" {
				t.Errorf("reserved is %v", leases)
			}
			f.reach(f.host, b.Namespace, b.ips()[0])
			f.must(f.gc(config))
			f.must(os.RemoveAll(filepath.Dir(f.plugin.records().Path("net", record.Owner{}))))
			f.same(before, "GC of all")
		})
	}
}

// TestGCOfSharedPrefix has two networks whose devices have names with the same prefix: GC of one spares those of the other,
// and deletes its own without records.
func TestGCOfSharedPrefix(t *testing.T) {
	f := newFixture(t)
	twin := ""
	for i := 0; twin == ""; i++ {
		if name := fmt.Sprint("net", i); record.DevicePrefix(name) == record.DevicePrefix("net") {
			twin = name
		}
	}
	p := f.added("a", network("net", "veth", ""))
	own := f.added("b", network(twin, "veth", ""))
	f.must(os.RemoveAll(filepath.Join(f.plugin.RunDir, twin)))
	f.must(os.RemoveAll(f.plugin.stateDir(twin)))
	f.must(f.gc(network(twin, "veth", "")))
	f.must(f.check(p))
	f.reach(f.host, p.Namespace, p.ips()[0])
	if _, err := rtnl.In(own.Namespace).Device("eth0"); err == nil {
		t.Error("the device of the network itself is left")
	}
}

// TestSweep loses records, leases and the previous result. DEL finds the entries of the
// datapath by the namespace or the device of the pod; GC finds pods that no longer exist.
// Pods of other networks are unaffected.
func TestSweep(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		mode, services string
		// byDEL is set where DEL can tell that the device is the attachment's: by its name.
		byDEL bool
	}{
		{"veth", netconf.ServicesBoth, true}, {"veth", netconf.ServicesSocket, true}, {"bridge", netconf.ServicesTC, true},
		{"macvlan", netconf.ServicesTC, false}, {"macvlan", netconf.ServicesSocket, false},
	} {
		t.Run(test.mode+"/"+test.services, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.plugin.Cgroup = testkit.Cgroup(t)
			services := `,"services":"` + test.services + `"`
			config := network("net", test.mode, services)
			kept := f.added("kept", network("kept", "veth", services))
			f.must(f.del(f.added("first", config))) // makes what stays
			before := f.left()
			lost := func() *pod {
				p := f.added("a", network("net", test.mode, services))
				for _, dir := range []string{filepath.Join(f.plugin.RunDir, "net"), f.plugin.stateDir("net")} {
					f.must(os.RemoveAll(dir))
				}
				return p
			}
			if test.byDEL {
				f.must(f.del(lost()))
				f.nothingMore(before)
			}
			p := lost()
			f.must(netns.Delete(p.Name()))
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
