// SPDX-License-Identifier: Apache-2.0

package rtnl_test

import (
	"errors"
	"testing"

	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// TestTry tries devices and queues, and leaves none.
func TestTry(t *testing.T) {
	a := testkit.Namespace(t, "a")
	for _, kind := range []string{"vxlan", "bridge", "ifb"} {
		if err := rtnl.In(a).TryDevice(kind); err != nil {
			t.Error(err)
		}
	}
	for _, kind := range []string{"tbf", "pfifo"} {
		if err := rtnl.In(a).TryQdisc(kind); err != nil {
			t.Error(err)
		}
	}
	if err := errors.Join(rtnl.In(a).TryNFTables(), rtnl.In(a).TryConntrack()); err != nil {
		t.Error(err)
	}
	if err := rtnl.In(a).TryGenericFamily("nlctrl"); err != nil {
		t.Error(err)
	}
	for name, err := range map[string]error{
		"device": rtnl.In(a).TryDevice("no-such-kind"), "qdisc": rtnl.In(a).TryQdisc("no-such-kind"), "family": rtnl.In(a).TryGenericFamily("no-such-family"),
	} {
		if !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("trying a %s that does not exist: %v", name, err)
		}
	}
	links, err := handle(t, a).LinkList()
	if err != nil || len(links) != 1 {
		t.Errorf("left: %v, %v", links, err)
	}
	qdiscs, err := handle(t, a).QdiscList(links[0])
	if err != nil || len(qdiscs) != 1 || qdiscs[0].Type() != "noqueue" {
		t.Errorf("left: %v, %v", qdiscs, err)
	}
}
