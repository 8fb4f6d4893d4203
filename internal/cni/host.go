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

func masqueradeTable(host *netns.Namespace, network string) (*nftables.Conn, *nftables.Table, *nftables.Chain, error) {
	conn, err := nftables.New(nftables.WithNetNSFd(host.FD()))
	if err != nil {
		return nil, nil, nil, fmt.Errorf("masquerade: %w", err)
	}
	table := &nftables.Table{Family: nftables.TableFamilyINet, Name: netconf.PluginType + "-" + network}
	return conn, table, &nftables.Chain{
		Name: "postrouting", Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource,
	}, nil
}

// setMasquerade replaces the table of a network: packets that leave a prefix get an address of the host as their
// source.
func setMasquerade(host *netns.Namespace, network string, prefixes []netip.Prefix) error {
	conn, table, chain, err := masqueradeTable(host, network)
	if err != nil {
		return err
	}
	conn.AddTable(table)
	conn.DelTable(table)
	conn.AddTable(table)
	conn.AddChain(chain)
	for _, prefix := range prefixes {
		conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: masqueradeRule(prefix.Masked())})
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("masquerade %v in %q: %w", prefixes, host.Name(), err)
	}
	return nil
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
	return slices.Concat([]expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{family}},
	}, match(source, expr.CmpOpEq), match(destination, expr.CmpOpNeq), []expr.Any{&expr.Counter{}, &expr.Masq{}})
}
