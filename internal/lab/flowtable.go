// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/podlink"
)

const flowtableName = "mustang-flowtable" // of the table too

// probeFlowtable returns an [*UnsupportedError] on a kernel without flowtables.
func probeFlowtable() error {
	ns, err := netns.New()
	if err != nil {
		return err
	}
	defer ns.Close()
	return addFlowtable(ns, "lo")
}

// addFlowtable makes a host forward open TCP connections by an nftables flowtable: from the ingress hook of one of the
// devices to another, past the IP layer and the rules (Documentation/networking/nf_flowtable.rst).
func addFlowtable(host *netns.Namespace, devices ...string) error {
	conn, err := nftables.New(nftables.WithNetNSFd(host.FD()))
	if err != nil {
		return fmt.Errorf("flowtable: %w", err)
	}
	table := conn.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: flowtableName})
	conn.AddFlowtable(&nftables.Flowtable{
		Table: table, Name: flowtableName, Hooknum: nftables.FlowtableHookIngress,
		Priority: nftables.FlowtablePriorityFilter, Devices: devices,
	})
	forward := conn.AddChain(&nftables.Chain{
		Name: "forward", Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookForward,
		Priority: nftables.ChainPriorityFilter,
	})
	conn.AddRule(&nftables.Rule{Table: table, Chain: forward, Exprs: []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_TCP}},
		&expr.Counter{},
		&expr.FlowOffload{Name: flowtableName},
	}})
	err = conn.Flush()
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, fs.ErrNotExist) {
		return podlink.UnsupportedError{
			Feature: "flowtables of nftables", Module: "nf_flow_table_inet", Since: "4.16", Err: err,
		}.Here()
	}
	if err != nil {
		return fmt.Errorf("flowtable: %w", err)
	}
	return nil
}
