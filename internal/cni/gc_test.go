// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"os"
	"testing"

	"mustang/internal/nl"
)

// TestGC keeps valid attachments, and takes away all others, of this network alone:
// with their namespaces there or gone, and with all records lost.
func TestGC(t *testing.T) {
	for _, mode := range crashModes {
		t.Run(mode, func(t *testing.T) {
			f := newCrashFixture(t, mode)
			config := network("net", mode, `,"services":"both"`)
			kept := f.added("kept", config)
			other := f.added("other", network("elsewhere", "veth", ""))
			before := f.left()
			stale, gone := f.added("stale", config), f.added("gone", everything(mode))
			f.must(nl.DeleteNamespace(gone.Name()))
			f.must(gone.Close())
			f.must(f.gc(config, kept))
			f.same(before, "GC")
			if _, err := stale.Device("eth0"); err == nil {
				t.Error("the stale pod has its device still")
			}
			f.must(f.check(kept))
			f.must(f.check(other))
			f.must(f.gc(config, kept))
			f.same(before, "GC again")
		})
	}
}

// TestGCWithoutRecords has GC find what there is by the addresses and the names of
// devices alone.
func TestGCWithoutRecords(t *testing.T) {
	for _, mode := range []string{"veth", "bridge"} {
		t.Run(mode, func(t *testing.T) {
			f := newFixture(t)
			config := network("net", mode, "")
			f.must(f.del(f.added("first", config)))
			before := f.left()
			f.added("a", config)
			b := f.added("b", config)
			f.must(os.RemoveAll(f.plugin.records("net").dir))
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
			f.must(os.RemoveAll(f.plugin.records("net").dir))
			f.same(before, "GC of all")
		})
	}
}
