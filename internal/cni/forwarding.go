// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"errors"
	"io/fs"
	"net/netip"
	"slices"

	"mustang/internal/netns"
	"mustang/internal/podlink"
	"mustang/internal/rtnl"
)

// The host forwards in the families of its pods, from the first ADD on. A host that forwards IPv6 drops its routes of router
// advertisements and takes no more, except on devices whose accept_ra is 2. The kernel before 6.17 has no forwarding of IPv6 by
// device, so the devices that have such routes get that value first.

// enableForwarding enables forwarding in the families of the host's addresses among the pods, or in both without any.
func (a *attachment) enableForwarding(gateways []netip.Prefix) error {
	addresses := []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}
	if len(gateways) > 0 {
		addresses = addresses[:0]
		for _, g := range gateways {
			addresses = append(addresses, g.Addr())
		}
	}
	return EnableForwarding(a.host, addresses)
}

// EnableForwarding has a host forward in the families of some addresses. Nothing switches it off: others may need it by then.
func EnableForwarding(host *netns.Namespace, addresses []netip.Addr) error {
	var changes []rtnl.Sysctl
	if slices.ContainsFunc(addresses, netip.Addr.Is6) && isOff(host, podlink.IPv6Forwarding) {
		devices, err := learningDevices(host)
		if err != nil {
			return err
		}
		changes = append(devices, rtnl.Sysctl{Key: podlink.IPv6Forwarding, Value: "1"})
	}
	if slices.ContainsFunc(addresses, netip.Addr.Is4) && isOff(host, podlink.IPv4Forwarding) {
		changes = append(changes, rtnl.Sysctl{Key: podlink.IPv4Forwarding, Value: "1"})
	}
	return rtnl.In(host).SetSysctls(changes, func(_ rtnl.Sysctl, err error) bool { return errors.Is(err, fs.ErrNotExist) }) // devices may be gone
}

// isOff reports whether a setting of the host is 0.
func isOff(host *netns.Namespace, key string) bool {
	value, err := rtnl.In(host).Sysctl(key)
	return err == nil && value == "0"
}

// learningDevices returns the settings by which devices that have routes of router advertisements go on to take them when
// IPv6 is forwarded. Others then take none any more: the device of a pod could send false ones.
func learningDevices(host *netns.Namespace) (settings []rtnl.Sysctl, err error) {
	names, err := rtnl.In(host).AdvertisedDevices()
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		key := "net/ipv6/conf/" + name + "/accept_ra"
		if value, err := rtnl.In(host).Sysctl(key); err == nil && value == "1" {
			settings = append(settings, rtnl.Sysctl{Key: key, Value: "2"})
		}
	}
	return settings, nil
}
