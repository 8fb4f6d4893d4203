// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"

	"mustang/internal/nl"
)

// setting is a sysctl with the value that it should have.
type setting struct{ key, value string }

// forwarding lets a host route its pods' packets.
func forwarding() []setting {
	return []setting{
		{"net/ipv4/ip_forward", "1"},
		{"net/ipv6/conf/all/forwarding", "1"},
	}
}

// device are the settings of a device that gets addresses: none that routers
// advertise, and a link-local address that is usable at once. IPv6 is switched
// on if the device gets IPv6 addresses, otherwise it stays as it is.
func device(name string, addrs []netip.Prefix) []setting {
	conf := "net/ipv6/conf/" + name
	settings := []setting{{conf + "/accept_dad", "0"}, {conf + "/accept_ra", "0"}}
	if slices.ContainsFunc(addrs, func(p netip.Prefix) bool { return p.Addr().Is6() }) {
		settings = append(settings, setting{conf + "/disable_ipv6", "0"})
	}
	return settings
}

// layer3Device are the settings of a device without neighbours. It gets no
// link-local address, which nothing would use: the kernel would give both ends of
// a link the same if they have no MAC address.
func layer3Device(name string, addrs []netip.Prefix) []setting {
	return append(device(name, addrs), setting{"net/ipv6/conf/" + name + "/addr_gen_mode", "1"})
}

// announcing are the settings of a device that tells its neighbours where its
// addresses are when its MAC address is set.
func announcing(name string) []setting {
	return []setting{{"net/ipv4/conf/" + name + "/arp_notify", "1"}, {"net/ipv6/conf/" + name + "/ndisc_notify", "1"}}
}

// apply sets the settings. Those of IPv6 are left out on a kernel without IPv6.
func apply(ns *nl.Namespace, settings []setting) error {
	sysctls := make([]nl.Sysctl, 0, len(settings))
	for _, s := range settings {
		sysctls = append(sysctls, nl.Sysctl{Key: s.key, Value: s.value})
	}
	return ns.SetSysctls(sysctls, func(s nl.Sysctl, err error) bool { return withoutIPv6(s.Key, err) })
}

// deviations says which of the settings have another value.
func deviations(ns *nl.Namespace, settings []setting) ([]string, error) {
	var found []string
	for _, s := range settings {
		value, err := ns.Sysctl(s.key)
		if err != nil && withoutIPv6(s.key, err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if value != s.value {
			found = append(found, fmt.Sprintf("%s in %q is %s, not %s", s.key, ns.Name(), value, s.value))
		}
	}
	return found, nil
}

// withoutIPv6 reports whether err is because the kernel has no IPv6.
func withoutIPv6(key string, err error) bool {
	return errors.Is(err, fs.ErrNotExist) && strings.HasPrefix(key, "net/ipv6/")
}
