// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"errors"
	"io/fs"
	"strings"

	"mustang/internal/cni/record"
	"mustang/internal/netns"
	"mustang/internal/podlink"
	"mustang/internal/rtnl"
)

// The device that has a network's gateways can be the administrator's: a bridge with the node's own address. Only what the plugin has created is deleted.

// devicePrefix begins the names that the plugin gives to devices.
const devicePrefix = "mst"

// setUpDevice runs Setup, and returns whose the device with the gateways is, as [record.Network.Created] tells it. Where the plugin is killed
// before that is recorded, the device counts as found, and stays.
func (a *attachment) setUpDevice(want record.Network) (created int, err error) {
	device, _, err := gatewayDevice(want)
	if err != nil {
		return 0, err
	}
	before, err := indexOf(a.host, device)
	if err != nil {
		return 0, err
	}
	if err := a.mode.Setup(a.network); err != nil || a.mode.Traits().Routed {
		return 0, err
	}
	if before == 0 {
		return indexOf(a.host, device)
	}
	return a.plugin.creationOf(device, before, want.Boot), nil
}

// creationOf returns what the networks of this boot, of which one or more share an existing device, have recorded of its creation. An index that the
// device no longer has is that of another one, which somebody has replaced.
func (p *Plugin) creationOf(device string, index int, boot string) int {
	created := record.Found
	for _, name := range p.records().Networks() {
		n, ok := p.records().Network(name)
		if !ok || n.Boot != boot {
			continue
		}
		if at, _, err := gatewayDevice(n); err != nil || at != device {
			continue
		}
		switch n.Created {
		case index:
			return index
		case 0:
			created = 0
		}
	}
	return created
}

// tearDown deletes the device that has a network's gateways if the plugin has created it, or else removes the gateways that it has
// added there. Open vSwitch knows itself whose a bridge is. A record of an earlier version does not tell: then the name of the device does.
func tearDown(host *netns.Namespace, n record.Network) error {
	mode, err := podlink.Lookup(n.Link)
	if err != nil {
		return err
	}
	device, _, err := gatewayDevice(n)
	if err != nil {
		return err
	}
	index, err := indexOf(host, device)
	if err != nil {
		return err
	}
	traits := mode.Traits()
	created := !traits.Routed && n.Created == index || n.Created == 0 && strings.HasPrefix(device, devicePrefix)
	if created || traits.Needs == podlink.NeedsOpenVSwitch {
		return mode.Teardown(networkOf(n, host, mode))
	}
	return removeGateways(host, n, n.Gateways)
}

// indexOf returns the index of a device of the host, or 0 if it is missing.
func indexOf(host *netns.Namespace, device string) (int, error) {
	found, err := rtnl.In(host).Device(device)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	return found.Index, err
}
