// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"mustang/internal/nl"
)

// chainName is the name of the table's only chain.
const chainName = "postrouting"

// tableName is the name of a network's nftables table.
func tableName(network string) string { return PluginType + "-" + network }

// masquerade hides what pods send to outside of their network behind the host's
// address: one rule for each family, whatever the number of pods. It makes the
// table anew in one transaction.
func masquerade(host *nl.Namespace, network string, prefixes []netip.Prefix) error {
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
		conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: leaving(prefix.Masked())})
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("masquerade %v in %q: %w", prefixes, host.Name(), err)
	}
	return nil
}

// leaving matches packets from a prefix to elsewhere, and masquerades them.
func leaving(prefix netip.Prefix) []expr.Any {
	// Where the addresses are in the header (RFC 791, RFC 8200).
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

// masquerades is an error if the table of a network is not there, or lacks a rule.
func masquerades(host *nl.Namespace, network string, prefixes []netip.Prefix) error {
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
		return fmt.Errorf("nftables table inet %s is missing, or empty", table.Name)
	case len(rules) < len(prefixes):
		return fmt.Errorf("nftables table inet %s has %d rules, not %d", table.Name, len(rules), len(prefixes))
	}
	return nil
}
