// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mustang/internal/datapath"
	"mustang/internal/datapath/objects"
	"mustang/internal/testkit"
)

// TestNetkitIsAFeature requires that the name in the table is the name of a feature.
func TestNetkitIsAFeature(t *testing.T) {
	if !slices.ContainsFunc(objects.Features(""), func(f objects.Feature) bool { return f.Name == netkitFeature }) {
		t.Errorf("there is no feature %q", netkitFeature)
	}
}

// TestConnectionsFull fills a small connection table up to 80 % and beyond, with open connections and with ones that
// expired.
func TestConnectionsFull(t *testing.T) {
	testkit.RequireRoot(t)
	testkit.RequireKernel(t, 6, 6)
	root := testkit.BPFFS(t) + "/root"
	d, err := datapath.Open(t.Context(), datapath.Options{Root: root, Sizes: objects.Sizes{Connections: 1024}})
	testkit.Succeed(t, err)
	defer d.Close()
	o, err := objects.Open(root)
	testkit.Succeed(t, err)
	defer o.Close()
	var now unix.Timespec
	testkit.Succeed(t, unix.ClockGettime(unix.CLOCK_MONOTONIC, &now))
	for _, c := range []struct {
		state, count uint32
		open         int64
		amiss        bool
	}{
		{objects.SlotOpen, 819, 819, false}, {objects.SlotOpen, 820, 820, true}, {objects.SlotClosed, 820, 0, false},
		{objects.SlotOpen, 1024, 1024, true},
	} {
		for i := range c.count {
			testkit.Succeed(t, o.Slots.Map.Put(i, objects.Slot{State: c.state, Seen: uint64(now.Nano())}))
		}
		testkit.Succeed(t, o.NodeState.ClientConns(func(conns []uint64) { conns[65536] = uint64(c.count) }))
		r, err := readStatus(t.Context(), root)
		testkit.Succeed(t, err)
		amiss := false
		for _, f := range r.Findings {
			amiss = amiss || strings.Contains(f.What, fmt.Sprintf("%d open, room for 1024", c.open))
		}
		for _, m := range r.Maps {
			testkit.Check(t, m.Name != "slots" || m.Rows == c.open && m.Size == 1024, "%+v: map %+v", c, m)
		}
		if amiss != c.amiss {
			t.Errorf("%+v: amiss %+v", c, r.Findings)
		}
	}
}
