// SPDX-License-Identifier: Apache-2.0

package qdisc

import (
	"errors"
	"io/fs"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"mustang/internal/testkit"
)

// TestPolice passes packets until the burst and the slack are used up.
func TestPolice(t *testing.T) {
	p := newProgram(t, edtProgPolice, policeBucket(Limit{Rate: 8_000_000, Burst: 80_000}))
	passed := 0
	for range 1000 {
		verdict := testkit.Must(p.Program.Run(&ebpf.RunOptions{Data: make([]byte, 1000)}))(t)
		if verdict == verdictNext {
			passed++
		} else if verdict != verdictDrop {
			t.Fatalf("verdict %d", int32(verdict))
		}
	}
	// At a megabyte a second these are ten kilobytes, and those of a tenth of a second; more while the test runs.
	if want := 10 + int(policeSlack/time.Millisecond); passed < want || passed > 8*want {
		t.Errorf("%d packets passed, want %d", passed, want)
	}
}

// TestSetPolice sets limits of what a device receives, one after another; none is left by the last.
func TestSetPolice(t *testing.T) {
	a, _ := testkit.VethPair(t)
	old := ebpf.ProgramID(0)
	for _, limit := range []Limit{{}, {Rate: 8e6}, {Rate: 8e6}, {Rate: 8e6, Burst: 8e6}, {Rate: 9e6}, {}, {Rate: 8e6}} {
		before := testkit.Must(PoliceDeviation(a, device, limit))(t)
		testkit.Succeed(t, SetPolice(a, device, limit))
		if says, err := PoliceDeviation(a, device, limit); says != "" || err != nil {
			t.Errorf("%+v: %s, %v", limit, says, err)
		}
		id := ebpf.ProgramID(0)
		err := onPolice(a, "read", device, func(at policePoint) error {
			have, err := at.find()
			for _, one := range have {
				id = one.id
			}
			return err
		})
		if err != nil || (id == old) != (before == "") {
			t.Errorf("%+v: program %d after %d, %q, %v", limit, id, old, before, err)
		}
		if id != old && old != 0 {
			awaitGone(t, uint32(old))
		}
		old = id
	}
	if says, err := PoliceDeviation(a, device, Limit{}); says != "receives 8000000 bit/s at most, and not without a limit" || err != nil {
		t.Errorf("deviation %q, %v", says, err)
	}
	if err := SetPolice(a, "none", Limit{Rate: 8e6}); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	testkit.Fails(t, SetPolice(a, device, Limit{Rate: 8e6, Burst: 8}))
	testkit.Command(t, a, "ip link del "+device)
	awaitGone(t, uint32(old))
}
