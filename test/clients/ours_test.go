// SPDX-License-Identifier: Apache-2.0

package clients

import (
	"fmt"
	"path/filepath"
	"sync"

	"mustang/internal/cni"
	"mustang/internal/cni/netconf"
	"mustang/internal/ipam"
	"mustang/internal/podlink"
)

// mustangCNI builds our plugin.
var mustangCNI = sync.OnceValues(func() (string, error) {
	return build(netconf.PluginType, "mustang/cmd/"+
		netconf.PluginType)
})

// ours returns our plugin with each link mode that needs no Open vSwitch, and once with packet programs too.
func ours() []plugin {
	var out []plugin
	for _, mode := range podlink.Modes() {
		if mode.Traits().Needs == podlink.NeedsNothing || mode.Traits().Needs == podlink.NeedsUplink {
			out = append(out, mustang(mode, len(out), netconf.ServicesSocket))
		}
	}
	both := mustang(podlink.Modes()[0], len(out), netconf.ServicesBoth)
	both.name += "-" + netconf.ServicesBoth
	return append(out, both)
}

// mustang returns our plugin with a link mode. number selects its subnets.
func mustang(mode podlink.Mode, number int, services string) plugin {
	object4 := object{"subnet": fmt.Sprintf("10.89.%d.0/24", number)}
	object6 := object{"subnet": fmt.Sprintf("fd00:89:%x::/64", number)}
	return plugin{
		name: "mustang-" + mode.Name(), program: mustangCNI, version: "1.1.0", leases: builtIn, probe: mode.Probe,
		ports: true, loopback: true, verbs: true, services: true,
		bandwidth: mode.Traits().HostSide, plugins: []object{{
			"type": netconf.PluginType, "link": mode.Name(), "parent": uplink, "services": services,
			"capabilities": object{"portMappings": true, "bandwidth": mode.Traits().HostSide},
			"ipam":         object{"type": netconf.IPAMType, "ranges": [][]object{{object4}, {object6}}},
		}},
	}
}

// builtIn lists the reservations of our plugin.
func builtIn(m *machine, network string) ([]string, error) {
	leases, err := ipam.Open(m.path(filepath.Join(cni.DefaultStateDir, network))).Leases()
	var addrs []string
	for _, lease := range leases {
		addrs = append(addrs, lease.Address.String())
	}
	return addrs, err
}
