// SPDX-License-Identifier: Apache-2.0

package netconf

import (
	"slices"
	"testing"

	"mustang/internal/podlink"
	"mustang/internal/testkit"
)

// TestSelectLink selects a link mode that the kernel supports.
func TestSelectLink(t *testing.T) {
	testkit.RequireRoot(t)
	name := testkit.Must(SelectLink())(t)
	mode := testkit.Must(podlink.Lookup(name))(t)
	testkit.Succeed(t, mode.Probe())
	if !slices.Contains(AutoLinks(), name) || !slices.Contains(Links(), name) {
		t.Errorf("%s is not among %v and %v", name, AutoLinks(), Links())
	}
}

// TestCheckProxied refuses services off where pods of a node reach each other past the host.
func TestCheckProxied(t *testing.T) {
	for link, refused := range map[string]bool{
		"auto": false, "veth": false, "netkit": false, "bridge": false, "macvlan": true, "ipvlan-l2": true, "ipvlan-l3": true,
		"ipvlan-l3s": true, "ovs-veth": true, "ovs-internal": true,
	} {
		if !slices.Contains(Links(), link) {
			t.Errorf("%s is no link", link)
		}
		if err := CheckProxied(link, ServicesOff); (err != nil) != refused {
			t.Errorf("%s with services off: %v", link, err)
		}
		testkit.Succeed(t, CheckProxied(link, ServicesTC))
	}
}
