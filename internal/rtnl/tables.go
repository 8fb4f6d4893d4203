// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"errors"
	"fmt"
	"io"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// WriteTables writes the addresses, the routes of all tables, the rules and the neighbours of the namespace, a line each. What cannot be
// read is left out, and is the error.
func (c Conn) WriteTables(w io.Writer) error {
	h, err := c.Handle()
	if err != nil {
		return err
	}
	defer h.Close()
	links, err := Dump(h.LinkList)
	names := map[int]string{}
	for _, l := range links {
		a := l.Attrs()
		names[a.Index] = a.Name
		fmt.Fprintf(w, "link %d %q %s mtu %d %s %s master %d flags %s\n", a.Index, a.Name, l.Type(), a.MTU, a.OperState, a.HardwareAddr, a.MasterIndex, a.Flags)
	}
	addresses, failed := Dump(func() ([]netlink.Addr, error) { return h.AddrList(nil, unix.AF_UNSPEC) })
	err = errors.Join(err, failed)
	for _, a := range addresses {
		fmt.Fprintf(w, "address %s dev %q scope %d flags %#x\n", a.IPNet, names[a.LinkIndex], a.Scope, a.Flags)
	}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		routes, failed := Dump(func() ([]netlink.Route, error) {
			return h.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
		})
		err = errors.Join(err, failed)
		for _, r := range routes {
			fmt.Fprintf(w, "route %v via %v dev %q src %v table %d protocol %d metric %d type %d\n", r.Dst, r.Gw, names[r.LinkIndex], r.Src, r.Table, r.Protocol, r.Priority, r.Type)
		}
		rules, failed := Dump(func() ([]netlink.Rule, error) { return h.RuleList(family) })
		err = errors.Join(err, failed)
		for _, r := range rules {
			fmt.Fprintf(w, "rule %s\n", r)
		}
	}
	for _, family := range []int{unix.AF_BRIDGE, unix.AF_INET, unix.AF_INET6} {
		neighbours, failed := Dump(func() ([]netlink.Neigh, error) { return h.NeighList(0, family) })
		err = errors.Join(err, failed)
		for _, n := range neighbours {
			fmt.Fprintf(w, "neighbour %s at %s dev %q family %d state %#x flags %#x\n", n.IP, n.HardwareAddr, names[n.LinkIndex], family, n.State, n.Flags)
		}
	}
	return err
}
