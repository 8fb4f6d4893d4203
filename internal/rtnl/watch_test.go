// SPDX-License-Identifier: Apache-2.0

package rtnl_test

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// TestWatch is told of a device, an address, a route, and of a device that goes down.
func TestWatch(t *testing.T) {
	a, b := testkit.Namespace(t, "a"), testkit.Namespace(t, "b")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	changed, err := rtnl.In(a).Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	steps := []struct {
		what   string
		change func() error
	}{
		{"a device", func() error {
			return rtnl.AddVeth(rtnl.VethEnd{Namespace: a, Name: "eth0"}, rtnl.VethEnd{Namespace: b, Name: "eth0"}, 1500)
		}},
		{"an address", func() error {
			return rtnl.In(a).Configure("eth0", rtnl.DeviceConfig{Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24")}, Up: true})
		}},
		{"a route", func() error {
			return rtnl.In(a).AddRoute(netip.MustParsePrefix("10.0.0.0/8"), netip.MustParseAddr("192.0.2.2"))
		}},
		{"a device that is down", func() error { return rtnl.In(a).SetUp("eth0", false) }},
	}
	for _, step := range steps {
		for quiet := false; !quiet; { // what comes later of the step before, such as a link-local address
			select {
			case <-changed:
			case <-time.After(3 * time.Second):
				quiet = true
			}
		}
		if err := step.change(); err != nil {
			t.Fatal(err)
		}
		select {
		case <-changed:
		case <-time.After(time.Minute):
			t.Errorf("%s: not told", step.what)
		}
	}
}
