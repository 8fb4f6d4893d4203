// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/vm"
)

// zeroSysctls are the sysctls of pods that are set to 0: addresses are usable at once,
// and only the host provides routes.
var zeroSysctls = []string{
	"net/ipv4/conf/all/accept_redirects",
	"net/ipv4/conf/" + vm.NetworkDevice + "/accept_redirects",
	"net/ipv6/conf/" + vm.NetworkDevice + "/accept_redirects",
	"net/ipv6/conf/" + vm.NetworkDevice + "/accept_dad",
	"net/ipv6/conf/" + vm.NetworkDevice + "/accept_ra",
}

// ConfigureNetwork adds addresses and routes to the network device of the guest that
// it runs in. It is the argument of [vm.Init].
func ConfigureNetwork(config vm.NetworkConfig) error {
	ns, err := netns.Current()
	if err != nil {
		return err
	}
	defer ns.Close()
	for _, key := range zeroSysctls {
		if err := rtnl.In(ns).SetSysctl(key, "0"); err != nil {
			return err
		}
	}
	err = rtnl.In(ns).Configure(vm.NetworkDevice, rtnl.DeviceConfig{Up: true, MTU: config.MTU, Addresses: config.Addresses})
	if err != nil {
		return err
	}
	return rtnl.In(ns).AddDefaultRoutes(vm.NetworkDevice, config.Gateways)
}
