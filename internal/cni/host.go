// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"

	"github.com/google/nftables"

	"mustang/internal/cni/netconf"
	"mustang/internal/netns"
	"mustang/internal/podlink"
	"mustang/internal/rtnl"
)

// EnableForwarding enables forwarding in the families of the addresses. It is never disabled.
//
// With IPv6 forwarding the kernel drops routes of router advertisements, except on devices whose accept_ra is 2. So
// devices with such routes get that value first; on others a pod could send false advertisements.
func EnableForwarding(host *netns.Namespace, addresses []netip.Addr) error {
	conn := rtnl.In(host)
	has := func(key, value string) bool {
		now, err := conn.Sysctl(key)
		return err == nil && now == value
	}
	var changes []rtnl.Sysctl
	if slices.ContainsFunc(addresses, netip.Addr.Is6) && has(podlink.IPv6Forwarding, "0") {
		devices, err := conn.AdvertisedDevices()
		if err != nil {
			return err
		}
		for _, name := range devices {
			if key := "net/ipv6/conf/" + name + "/accept_ra"; has(key, "1") {
				changes = append(changes, rtnl.Sysctl{Key: key, Value: "2"})
			}
		}
		changes = append(changes, rtnl.Sysctl{Key: podlink.IPv6Forwarding, Value: "1"})
	}
	if slices.ContainsFunc(addresses, netip.Addr.Is4) && has(podlink.IPv4Forwarding, "0") {
		changes = append(changes, rtnl.Sysctl{Key: podlink.IPv4Forwarding, Value: "1"})
	}
	// devices may be gone
	return conn.SetSysctls(changes, func(_ rtnl.Sysctl, err error) bool { return errors.Is(err, fs.ErrNotExist) })
}

func masqueradeName(network string) string { return netconf.PluginType + "-" + network }

func masqueradeTable(host *netns.Namespace, network string) (*nftables.Conn, *nftables.Table, *nftables.Chain, error) {
	conn, err := nftables.New(nftables.WithNetNSFd(host.FD()))
	if err != nil {
		return nil, nil, nil, fmt.Errorf("masquerade: %w", err)
	}
	table := &nftables.Table{Family: nftables.TableFamilyINet, Name: masqueradeName(network)}
	return conn, table, &nftables.Chain{Name: "postrouting", Table: table}, nil
}

func removeMasquerade(host *netns.Namespace, network string) error {
	conn, table, _, err := masqueradeTable(host, network)
	if err != nil {
		return err
	}
	conn.DelTable(table)
	if err := conn.Flush(); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove masquerading of network %s: %w", network, err)
	}
	return nil
}

func checkMasquerade(host *netns.Namespace, network string, prefixes []netip.Prefix) error {
	conn, table, chain, err := masqueradeTable(host, network)
	if err != nil {
		return err
	}
	rules, err := conn.GetRules(table, chain)
	if err == nil && len(rules) < max(len(prefixes), 1) {
		err = fmt.Errorf("%d rules, want %d", len(rules), max(len(prefixes), 1))
	}
	if err != nil {
		return fmt.Errorf("nftables table inet %s: %w", table.Name, err)
	}
	return nil
}
