// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"mustang/internal/cni/netconf"
	"mustang/internal/netns"
	"mustang/internal/podlink"
	"mustang/internal/rtnl"
)

// The host forwards in the families of its pods, from the first ADD on. A host that forwards IPv6 drops its routes of
// router advertisements and takes no more, except on devices whose accept_ra is 2. The kernel before 6.17 has no
// forwarding of IPv6 by device, so the devices that have such routes get that value first.

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

// EnableForwarding has a host forward in the families of some addresses. Nothing switches it off: others may need it by
// then.
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
	// devices may be gone
	return rtnl.In(host).SetSysctls(changes, func(_ rtnl.Sysctl, err error) bool { return errors.Is(err, fs.ErrNotExist) })
}

// isOff reports whether a setting of the host is 0.
func isOff(host *netns.Namespace, key string) bool {
	value, err := rtnl.In(host).Sysctl(key)
	return err == nil && value == "0"
}

// learningDevices returns the settings by which devices that have routes of router advertisements go on to take them
// when IPv6 is forwarded. Others then take none any more: the device of a pod could send false ones.
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

// chainName is the only chain of the table.
const chainName = "postrouting"

// tableName returns the name of a network's nftables table.
func tableName(network string) string { return netconf.PluginType + "-" + network }

// setMasquerade adds one rule for each prefix: packets that leave the prefix get an
// address of the host as their source. It replaces the network's table in one transaction.
func setMasquerade(host *netns.Namespace, network string, prefixes []netip.Prefix) error {
	conn, err := nftables.New(nftables.WithNetNSFd(host.FD()))
	if err != nil {
		return fmt.Errorf("masquerade: %w", err)
	}
	table := conn.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: tableName(network)})
	conn.DelTable(table)
	table = conn.AddTable(table)
	chain := conn.AddChain(&nftables.Chain{
		Name: chainName, Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource,
	})
	for _, prefix := range prefixes {
		conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: masqueradeRule(prefix.Masked())})
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("masquerade %v in %q: %w", prefixes, host.Name(), err)
	}
	return nil
}

// removeMasquerade removes the network's table, if there is one.
func removeMasquerade(host *netns.Namespace, network string) error {
	conn, err := nftables.New(nftables.WithNetNSFd(host.FD()))
	if err != nil {
		return fmt.Errorf("masquerade: %w", err)
	}
	tables, err := conn.ListTablesOfFamily(nftables.TableFamilyINet)
	for _, table := range tables {
		if table.Name == tableName(network) {
			conn.DelTable(table)
			err = conn.Flush()
		}
	}
	if err != nil {
		return fmt.Errorf("remove masquerading of network %s: %w", network, err)
	}
	return nil
}

// masqueradeRule matches packets from a prefix to other destinations and masquerades them.
func masqueradeRule(prefix netip.Prefix) []expr.Any {
	// Offsets of the addresses in the headers (RFC 791, RFC 8200).
	family, source, destination, size := byte(unix.NFPROTO_IPV4), uint32(12), uint32(16), uint32(4)
	if prefix.Addr().Is6() {
		family, source, destination, size = unix.NFPROTO_IPV6, 8, 24, 16
	}
	mask := make([]byte, size)
	for i := range prefix.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	match := func(offset uint32, op expr.CmpOp) []expr.Any {
		return []expr.Any{
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size},
			&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: size, Mask: mask, Xor: make([]byte, size)},
			&expr.Cmp{Op: op, Register: 1, Data: prefix.Addr().AsSlice()},
		}
	}
	rule := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{family}},
	}
	rule = append(rule, match(source, expr.CmpOpEq)...)
	rule = append(rule, match(destination, expr.CmpOpNeq)...)
	return append(rule, &expr.Counter{}, &expr.Masq{})
}

// checkMasquerade returns an error if the table of a network is missing or lacks a rule.
func checkMasquerade(host *netns.Namespace, network string, prefixes []netip.Prefix) error {
	conn, err := nftables.New(nftables.WithNetNSFd(host.FD()))
	if err != nil {
		return err
	}
	table := &nftables.Table{Family: nftables.TableFamilyINet, Name: tableName(network)}
	rules, err := conn.GetRules(table, &nftables.Chain{Name: chainName, Table: table})
	switch {
	case err != nil:
		return fmt.Errorf("list nftables table inet %s: %w", table.Name, err)
	case len(rules) == 0:
		return fmt.Errorf("nftables table inet %s is missing or empty", table.Name)
	case len(rules) < len(prefixes):
		return fmt.Errorf("nftables table inet %s has %d rules, want %d", table.Name, len(rules), len(prefixes))
	}
	return nil
}
