// SPDX-License-Identifier: Apache-2.0

package rtnl_test

import (
	"slices"
	"testing"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

func TestAddWire(t *testing.T) {
	testkit.RequireRoot(t)
	a, b := testkit.Namespace(t, "a"), testkit.Namespace(t, "b")
	if err := rtnl.AddVeth(rtnl.VethEnd{Namespace: a, Name: "left"}, rtnl.VethEnd{Namespace: b, Name: "right"}, 1400); err != nil {
		t.Fatal(err)
	}
	left, err := rtnl.In(a).Device("left")
	if err != nil {
		t.Fatal(err)
	}
	right, err := rtnl.In(b).Device("right")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []rtnl.Device{left, right} {
		if !d.Up || d.MTU != 1400 || d.Kind != "veth" {
			t.Errorf("%+v: want a veth with MTU 1400 that is up", d)
		}
	}
	if left.PeerIndex != right.Index {
		t.Errorf("peer of left is %d, want %d", left.PeerIndex, right.Index)
	}
	before := names(t, b) // their addresses still settle
	if err := rtnl.AddVeth(rtnl.VethEnd{Namespace: b, Name: "other"}, rtnl.VethEnd{Namespace: a, Name: "left"}, 1400); err == nil {
		t.Error("a wire to a device that is there already")
	}
	if after := names(t, b); !slices.Equal(after, before) {
		t.Errorf("a wire that failed left %q, before there were %q", after, before)
	}
}

// names lists the devices of a namespace.
func names(t *testing.T, ns *netns.Namespace) (names []string) {
	t.Helper()
	devices, err := rtnl.In(ns).Devices()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range devices {
		names = append(names, d.Name)
	}
	return names
}

func TestOffloads(t *testing.T) {
	testkit.RequireRoot(t)
	a, b := testkit.Namespace(t, "a"), testkit.Namespace(t, "b")
	if err := rtnl.AddVeth(rtnl.VethEnd{Namespace: a, Name: "left"}, rtnl.VethEnd{Namespace: b, Name: "right"}, 1500); err != nil {
		t.Fatal(err)
	}
	on, err := rtnl.In(a).Offloads("left")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"tso", "gso", "tx-checksum"} {
		if !on[name] {
			t.Errorf("%s of a new veth: %v, want on", name, on)
		}
	}
	if _, err := rtnl.In(a).Offloads("nope"); err == nil {
		t.Error("offloads of a device that is not there")
	}
}
