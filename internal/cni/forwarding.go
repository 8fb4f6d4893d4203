// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"errors"
	"io/fs"
	"net/netip"
	"slices"

	"mustang/internal/cni/record"
	"mustang/internal/netns"
	"mustang/internal/podlink"
	"mustang/internal/rtnl"
)

// The host forwards in the families of its pods, from the first ADD to the last DEL. A host that forwards IPv6 drops its
// routes of router advertisements and takes no more, except on devices whose accept_ra is 2. The kernel before 6.17 has no
// forwarding of IPv6 by device, so the devices that have such routes get that value first.

// enableForwarding enables forwarding in the families of the host's addresses among the pods, or in both without any. It records first what it
// changes.
func (a *attachment) enableForwarding(gateways []netip.Prefix) error {
	families := func(is func(netip.Addr) bool) bool {
		return len(gateways) == 0 || slices.ContainsFunc(gateways, func(p netip.Prefix) bool { return is(p.Addr()) })
	}
	var changes []rtnl.Sysctl
	if families(netip.Addr.Is6) && a.isOff(podlink.IPv6Forwarding) {
		devices, err := learningDevices(a.host)
		if err != nil {
			return err
		}
		changes = append(devices, rtnl.Sysctl{Key: podlink.IPv6Forwarding, Value: "1"})
	}
	if families(netip.Addr.Is4) && a.isOff(podlink.IPv4Forwarding) {
		changes = append(changes, rtnl.Sysctl{Key: podlink.IPv4Forwarding, Value: "1"})
	}
	if len(changes) == 0 {
		return nil
	}
	unlock, err := a.plugin.records().LockPorts()
	if err != nil {
		return err
	}
	defer unlock()
	if err := a.plugin.records().AddSettings(settingsBefore(changes)); err != nil {
		return err
	}
	return setAll(a.host, changes)
}

// isOff reports whether a setting of the host is 0.
func (a *attachment) isOff(key string) bool {
	value, err := rtnl.In(a.host).Sysctl(key)
	return err == nil && value == "0"
}

// settingsBefore returns what undoes changes: off before on, which accept_ra must survive.
func settingsBefore(changes []rtnl.Sysctl) (before []record.Setting) {
	for _, c := range slices.Backward(changes) {
		old := "0"
		if c.Value == "2" {
			old = "1"
		}
		before = append(before, record.Setting{Key: c.Key, Value: old})
	}
	return before
}

// learningDevices returns the settings by which devices that have routes of router advertisements go on to take them. Others
// then take none any more: the device of a pod could send false ones.
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

// restoreForwarding undoes enableForwarding if no attachment is left.
func (a *attachment) restoreForwarding() error {
	store := a.plugin.records()
	before, err := store.Settings()
	if err != nil || len(before) == 0 || !store.Empty() {
		return err
	}
	unlock, err := store.LockPorts()
	if err != nil {
		return err
	}
	defer unlock()
	if before, err = store.Settings(); err != nil || len(before) == 0 { // another DEL was first
		return err
	}
	var restored, again []rtnl.Sysctl
	for _, b := range before {
		restored = append(restored, rtnl.Sysctl(b))
		again = slices.Insert(again, 0, rtnl.Sysctl{Key: b.Key, Value: map[string]string{"0": "1", "1": "2"}[b.Value]})
	}
	if err := setAll(a.host, restored); err != nil {
		return err
	}
	if store.Empty() {
		return store.RemoveSettings()
	}
	return setAll(a.host, again) // an ADD that has come meanwhile may have found the host forwarding
}

// setAll sets settings of the host. Devices may be gone.
func setAll(host *netns.Namespace, settings []rtnl.Sysctl) error {
	return rtnl.In(host).SetSysctls(settings, func(_ rtnl.Sysctl, err error) bool { return errors.Is(err, fs.ErrNotExist) })
}
