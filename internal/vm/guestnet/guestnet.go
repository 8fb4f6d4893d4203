// SPDX-License-Identifier: Apache-2.0

// Package guestnet sets up the network device of a guest, inside of it. It is
// apart from vm so that programs without it need no more than the kernel's own
// interface: the first process of a guest must be static.
package guestnet

import (
	"mustang/internal/nl"
	"mustang/internal/vm"
)

// off are the settings of pods that are switched off: addresses are usable at
// once, and nobody but the host says what routes there are.
var off = []string{
	"net/ipv4/conf/all/accept_redirects",
	"net/ipv4/conf/" + vm.NetworkDevice + "/accept_redirects",
	"net/ipv6/conf/" + vm.NetworkDevice + "/accept_redirects",
	"net/ipv6/conf/" + vm.NetworkDevice + "/accept_dad",
	"net/ipv6/conf/" + vm.NetworkDevice + "/accept_ra",
}

// Configure is for [vm.Init]: it gives the device its addresses and routes, and
// sets it up.
func Configure(config vm.Interior) error {
	ns, err := nl.CurrentNamespace()
	if err != nil {
		return err
	}
	defer ns.Close()
	for _, key := range off {
		if err := ns.SetSysctl(key, "0"); err != nil {
			return err
		}
	}
	err = ns.Configure(vm.NetworkDevice, nl.DeviceConfig{Up: true, MTU: config.MTU, Addresses: config.Addresses})
	if err != nil {
		return err
	}
	return ns.AddDefaultRoutes(vm.NetworkDevice, config.Gateways)
}
