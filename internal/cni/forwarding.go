// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"errors"
	"io/fs"
	"net/netip"
	"slices"
	"strings"

	"mustang/internal/cni/record"
	"mustang/internal/netns"
	"mustang/internal/podlink"
	"mustang/internal/rtnl"
)

// The host forwards in the families of its pods, from the first ADD to the last DEL, and as long as an agent wants it. A host
// that forwards IPv6 drops its routes of router advertisements and takes no more, except on devices whose accept_ra is 2. The kernel
// before 6.17 has no forwarding of IPv6 by device, so the devices that have such routes get that value first.

// forwarding is that of a host, with the records of what it was before.
type forwarding struct {
	host    *netns.Namespace
	records record.Store
}

func (p *Plugin) forwarding(host *netns.Namespace) forwarding { return forwarding{host, p.records()} }

// KeepForwarding has a host forward in the families of some addresses, whether it has pods or not, until EndForwarding: what clients send to
// its node ports may be for pods of other hosts.
func (p *Plugin) KeepForwarding(host *netns.Namespace, addresses []netip.Addr) error {
	if len(addresses) == 0 {
		return nil
	}
	if err := p.records().HoldSettings(); err != nil {
		return err
	}
	return p.forwarding(host).enable(addresses)
}

// EndForwarding undoes KeepForwarding. While there are pods, the host goes on to forward.
func (p *Plugin) EndForwarding(host *netns.Namespace) error {
	if err := p.records().ReleaseSettings(); err != nil {
		return err
	}
	return p.forwarding(host).restore()
}

// enableForwarding enables forwarding in the families of the host's addresses among the pods, or in both without any.
func (a *attachment) enableForwarding(gateways []netip.Prefix) error {
	addresses := []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}
	if len(gateways) > 0 {
		addresses = addresses[:0]
		for _, g := range gateways {
			addresses = append(addresses, g.Addr())
		}
	}
	return a.plugin.forwarding(a.host).enable(addresses)
}

// enable enables forwarding in the families of some addresses. It records first what it changes.
func (f forwarding) enable(addresses []netip.Addr) error {
	var keys []string
	if slices.ContainsFunc(addresses, netip.Addr.Is6) {
		keys = append(keys, podlink.IPv6Forwarding)
	}
	if slices.ContainsFunc(addresses, netip.Addr.Is4) {
		keys = append(keys, podlink.IPv4Forwarding)
	}
	if !slices.ContainsFunc(keys, f.isOff) {
		return nil
	}
	unlock, err := f.records.LockPorts()
	if err != nil {
		return err
	}
	defer unlock()
	var changes []rtnl.Sysctl
	var before []record.Setting
	for _, key := range slices.DeleteFunc(keys, func(key string) bool { return !f.isOff(key) }) { // another ADD was first
		devices, err := learningDevices(f.host, key)
		if err != nil {
			return err
		}
		others, err := changedByKernel(f.host, key)
		if err != nil {
			return err
		}
		before = slices.Concat(before, []record.Setting{{Key: key, Value: "0"}}, others)
		for _, d := range devices { // after forwarding, which they must survive
			before = append(before, record.Setting{Key: d.Key, Value: "1"})
		}
		changes = append(append(changes, devices...), rtnl.Sysctl{Key: key, Value: "1"})
	}
	if err := f.records.AddSettings(before); err != nil {
		return err
	}
	return setAll(f.host, changes)
}

// isOff reports whether a setting of the host is 0.
func (f forwarding) isOff(key string) bool {
	value, err := rtnl.In(f.host).Sysctl(key)
	return err == nil && value == "0"
}

// changedByKernel returns the settings that the kernel changes when forwarding is switched on and off again, as they are:
// devices that forward by themselves and, with IPv4, that redirects are not accepted.
func changedByKernel(host *netns.Namespace, key string) (before []record.Setting, err error) {
	conf := "net/ipv6/conf"
	if key == podlink.IPv4Forwarding {
		conf = "net/ipv4/conf"
		redirects := record.Setting{Key: conf + "/all/accept_redirects"}
		if redirects.Value, err = rtnl.In(host).Sysctl(redirects.Key); err != nil {
			return nil, err
		}
		before = append(before, redirects)
	}
	devices, err := rtnl.In(host).Sysctls(conf + "/*/forwarding")
	for _, d := range devices {
		if d.Value == "1" {
			before = append(before, record.Setting(d))
		}
	}
	return before, err
}

// learningDevices returns the settings by which devices that have routes of router advertisements go on to take them when
// IPv6 is forwarded. Others then take none any more: the device of a pod could send false ones.
func learningDevices(host *netns.Namespace, key string) (settings []rtnl.Sysctl, err error) {
	if key != podlink.IPv6Forwarding {
		return nil, nil
	}
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

// whilePods returns the value that a setting to restore has had since it was enabled, or "" if that is not known.
func whilePods(before record.Setting) string {
	switch {
	case before.Key == podlink.IPv4Forwarding || before.Key == podlink.IPv6Forwarding:
		return "1"
	case strings.HasSuffix(before.Key, "/accept_ra"):
		return "2"
	}
	return ""
}

// restore undoes enable if nothing needs forwarding any more, but for what someone else has changed meanwhile.
func (f forwarding) restore() error {
	store := f.records
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
		since := whilePods(b)
		if since != "" {
			if have, err := rtnl.In(f.host).Sysctl(b.Key); err != nil || have != since {
				continue
			}
			again = slices.Insert(again, 0, rtnl.Sysctl{Key: b.Key, Value: since})
		}
		restored = append(restored, rtnl.Sysctl(b))
	}
	if err := setAll(f.host, restored); err != nil {
		return err
	}
	if store.Empty() {
		return store.RemoveSettings()
	}
	return setAll(f.host, again) // an ADD that has come meanwhile may have found the host forwarding
}

// setAll sets settings of the host. Devices may be gone.
func setAll(host *netns.Namespace, settings []rtnl.Sysctl) error {
	return rtnl.In(host).SetSysctls(settings, func(_ rtnl.Sysctl, err error) bool { return errors.Is(err, fs.ErrNotExist) })
}
