// SPDX-License-Identifier: Apache-2.0

package rtnl_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

func TestConfigure(t *testing.T) {
	a, b := testkit.Namespace(t, "a"), testkit.Namespace(t, "b")
	if err := rtnl.AddVeth(rtnl.VethEnd{Namespace: a, Name: "left"}, rtnl.VethEnd{Namespace: b, Name: "right"}, 1500); err != nil {
		t.Fatal(err)
	}
	config := rtnl.DeviceConfig{Up: true, MTU: 1400, Addresses: []netip.Prefix{
		netip.MustParsePrefix("10.9.0.1/24"), netip.MustParsePrefix("fd00:9::1/64"), netip.MustParsePrefix("fe80::9/64"),
	}}
	for range 2 { // what is there already is no error
		if err := rtnl.In(a).Configure("left", config); err != nil {
			t.Fatal(err)
		}
		device, err := rtnl.In(a).Device("left")
		if err != nil {
			t.Fatal(err)
		}
		if !device.Up || device.MTU != config.MTU {
			t.Errorf("the device is %+v", device)
		}
		for _, want := range config.Addresses {
			if !slices.Contains(device.Addrs, want) {
				t.Errorf("address %s is missing of %v", want, device.Addrs)
			}
		}
	}
	if device, err := rtnl.In(b).Device("right"); err != nil || device.MTU != 1500 || len(device.Addrs) != 1 {
		t.Errorf("the other end is %+v (%v)", device, err)
	}
}

func TestConfigureFails(t *testing.T) {
	ns := testkit.Namespace(t, "a")
	for _, test := range []struct {
		name   string
		config rtnl.DeviceConfig
		want   string
	}{
		{"nobody", rtnl.DeviceConfig{Up: true}, `"nobody"`},
		{"lo", rtnl.DeviceConfig{MTU: -1}, "MTU -1"},
		{"lo", rtnl.DeviceConfig{Addresses: []netip.Prefix{{}}}, "address"},
		{"lo", rtnl.DeviceConfig{Addresses: []netip.Prefix{netip.PrefixFrom(netip.MustParseAddr("10.0.0.1"), -1)}}, "10.0.0.1"},
	} {
		err := rtnl.In(ns).Configure(test.name, test.config)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want one with %q", test.name, err, test.want)
		}
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q", ns.Name())) {
			t.Errorf("error %v does not name the namespace", err)
		}
	}
}
