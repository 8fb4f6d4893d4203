// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// TestRouters has another than the host be the router, by an address of the link
// alone for IPv6: pods have their default routes by it, the host has its own address
// and not the router's, and nothing is left after Delete. Check finds the router's
// address on the host.
func TestRouters(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode Mode) {
		if !mode.Switched() {
			return // refused: TestCreateFails, TestSetupFails
		}
		f := newHost(t, mode)
		f.network.Routers = []netip.Addr{netip.MustParseAddr("192.168.10.254"), netip.MustParseAddr("fe80::fe")}
		if err := mode.Setup(f.network); err != nil {
			t.Fatal(err)
		}
		before := describe(t, f.network.Host)
		f.create(t, f.newPod(t, 0))
		for i, route := range f.links[0].Routes {
			if len(f.links[0].Routes) != 2 || route.Via != f.network.Routers[i] {
				t.Errorf("routes are %v, want those by %v", f.links[0].Routes, f.network.Routers)
			}
		}
		if err := mode.Check(f.network, f.pods[0]); err != nil {
			t.Error(err)
		}
		swapped := f.network
		swapped.Gateways = slices.Clone(f.network.Gateways)
		swapped.Gateways[0] = netip.MustParsePrefix("192.168.10.2/24")
		swapped.Routers = []netip.Addr{f.network.Gateways[0].Addr(), f.network.Routers[1]}
		if err := mode.Check(swapped, f.pods[0]); err == nil || !strings.Contains(err.Error(), "address 192.168.10.1, of a router") {
			t.Errorf("Check does not find the router's address on the host: %v", err)
		}
		if err := mode.Delete(f.network, f.pods[0]); err != nil {
			t.Error(err)
		}
		if after := describe(t, f.network.Host); after != before {
			t.Errorf("left behind:\n%s", difference(before, after))
		}
	})
}
