// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"mustang/internal/nl"
	"mustang/internal/vm"
)

// guestOff are the settings of pods that are switched off: addresses are usable at
// once, and nobody but the host says what routes there are.
var guestOff = []string{
	"net/ipv4/conf/all/accept_redirects",
	"net/ipv4/conf/" + vm.NetworkDevice + "/accept_redirects",
	"net/ipv6/conf/" + vm.NetworkDevice + "/accept_redirects",
	"net/ipv6/conf/" + vm.NetworkDevice + "/accept_dad",
	"net/ipv6/conf/" + vm.NetworkDevice + "/accept_ra",
}

// ConfigureGuest sets up the network of a guest, inside of it: it is for [vm.Init],
// and gives the guest's device its addresses and routes.
func ConfigureGuest(config vm.Interior) error {
	ns, err := nl.CurrentNamespace()
	if err != nil {
		return err
	}
	defer ns.Close()
	for _, key := range guestOff {
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
