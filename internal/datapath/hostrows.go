// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/service"
)

// hostRows are what the programs know of the host itself.
type hostRows struct {
	addresses map[objects.Addr]bool
	uplinks   map[uint32]objects.Uplink
}

// readHost reads the host's addresses, and those of its uplinks.
func readHost(ns *netns.Namespace, uplinks []int) (hostRows, error) {
	n := hostRows{make(map[objects.Addr]bool), make(map[uint32]objects.Uplink)}
	addresses, err := rtnl.In(ns).Addresses()
	if err != nil {
		return n, err
	}
	first, last, err := sourcePorts(ns)
	if err != nil {
		return n, err
	}
	for _, a := range addresses {
		n.addresses[rows.EncodeAddr(a.Addr)] = true
	}
	for _, index := range uplinks {
		row := objects.Uplink{PortFirst: first, PortLast: last}
		row.V4, row.V6 = source(addresses, index, netip.Addr.Is4), source(addresses, index, netip.Addr.Is6)
		n.uplinks[uint32(index)] = row
	}
	return n, nil
}

// source returns the first address of a device in a family that lasts; zero if there is none.
func source(addresses []rtnl.Address, index int, family func(netip.Addr) bool) (addr objects.Addr) {
	i := slices.IndexFunc(addresses, func(a rtnl.Address) bool { return a.Index == index && a.Lasting && family(a.Addr) })
	if i >= 0 {
		addr = rows.EncodeAddr(addresses[i].Addr)
	}
	return addr
}

// sourcePorts returns the range of source ports for packets that the host passes on in its own name: the larger of
// those below and above the ports that the kernel gives to sockets. If both are small, it is that of all ports.
func sourcePorts(ns *netns.Namespace) (first, last uint16, err error) {
	const lowest, highest, enough = 1024, 65535, 4096
	value, err := rtnl.In(ns).Sysctl("net/ipv4/ip_local_port_range")
	if err != nil {
		return 0, 0, err
	}
	var low, high int
	if _, err := fmt.Sscan(value, &low, &high); err != nil {
		return 0, 0, fmt.Errorf("sysctl net/ipv4/ip_local_port_range %q: %w", value, err)
	}
	switch below, above := low-lowest, highest-high; {
	case max(below, above) < enough:
		return lowest, highest, nil
	case below >= above:
		return lowest, uint16(low - 1), nil
	default:
		return uint16(high + 1), highest, nil
	}
}

// refresh brings the rows of the host's addresses and uplinks up to date. It does nothing while no host is known, or
// where nothing leads to its network namespace. The caller has the lock of the rows.
func refresh(o *objects.Objects) error {
	host, err := hostCookie(o)
	if err != nil || host == 0 {
		return err
	}
	attached, err := Uplinks{o}.attached(func(objects.Link) error { return nil })
	if err != nil {
		return err
	}
	var indexes []int
	for u := range attached {
		if u.Host == host {
			indexes = append(indexes, u.IfIndex)
		}
	}
	return onHost(host, func(ns *netns.Namespace) error {
		if ns == nil {
			return nil
		}
		n, err := readHost(ns, indexes)
		if err != nil {
			return err
		}
		_, err = n.write(o)
		return err
	})
}

// hostCookie returns the cookie of the host: that of endpoints and uplinks or, without them, one whose sockets are
// translated. 0: there is none.
func hostCookie(o *objects.Objects) (uint64, error) {
	state, err := o.NodeState.IDs()
	if err != nil || state.Host != 0 {
		return state.Host, err
	}
	scopes, err := o.Namespaces.Rows()
	if err != nil {
		return 0, err
	}
	host := uint64(0)
	for cookie, scope := range scopes {
		if scope.Flags&objects.NamespaceHost != 0 && (host == 0 || cookie < host) {
			host = cookie
		}
	}
	return host, nil
}

// write makes the rows those of n, and reports whether an uplink's changed. The filter knows a node port at an address
// before the address is there.
func (n hostRows) write(o *objects.Objects) (changed bool, err error) {
	have, err := o.NodeAddresses.Rows()
	if err != nil {
		return false, err
	}
	var added []objects.Addr
	for addr := range n.addresses {
		if _, pod, err := o.Endpoints.Get(addr); err != nil {
			return false, err
		} else if _, had := have[addr]; !pod && !had {
			added = append(added, addr)
		}
	}
	if err := addNodeAddresses(o, added); err != nil {
		return false, err
	}
	for addr := range have {
		if !n.addresses[addr] {
			if err := o.NodeAddresses.Delete(addr); err != nil {
				return false, err
			}
			changed = true
		}
	}
	uplinks, err := n.writeUplinks(o)
	if err == nil && (changed || len(added) > 0) {
		err = o.NodeState.Invalidate()
	}
	return uplinks, err
}

// addNodeAddresses serves node ports at more addresses.
func addNodeAddresses(o *objects.Objects, added []objects.Addr) error {
	if len(added) == 0 {
		return nil
	}
	var services []objects.ServiceKey
	for row, err := range o.Services.All() {
		if err != nil {
			return err
		}
		services = append(services, row.Key)
	}
	if err := o.NodeState.AddFrontends(at(services, added)); err != nil {
		return err
	}
	for _, addr := range added {
		if err := o.NodeAddresses.Put(addr, 0); err != nil {
			return err
		}
	}
	return nil
}

// at returns the frontends of the node ports among keys at each of the addresses of their family.
func at(keys []objects.ServiceKey, addresses []objects.Addr) []objects.ServiceKey {
	var all []objects.ServiceKey
	for _, key := range keys {
		unspecified := rows.DecodeAddr(key.Addr)
		if !unspecified.IsUnspecified() {
			continue
		}
		for _, addr := range addresses {
			if rows.DecodeAddr(addr).Is4() == unspecified.Is4() {
				key.Addr = addr
				all = append(all, key)
			}
		}
	}
	return all
}

// filterKeys returns the frontends that the filter must know for rows of services. The caller has the lock of the rows.
func filterKeys(o *objects.Objects, keys []objects.ServiceKey) ([]objects.ServiceKey, error) {
	if !slices.ContainsFunc(keys, func(k objects.ServiceKey) bool { return rows.DecodeAddr(k.Addr).IsUnspecified() }) {
		return keys, nil
	}
	addresses, err := o.NodeAddresses.Rows()
	return slices.Concat(keys, at(keys, slices.Collect(maps.Keys(addresses)))), err
}

// writeUplinks makes the rows of uplinks those of n, and reports whether one changed.
func (n hostRows) writeUplinks(o *objects.Objects) (changed bool, err error) {
	have, err := o.Uplinks.Rows()
	if err != nil {
		return false, err
	}
	for index, row := range n.uplinks {
		if h, ok := have[index]; ok && h == row {
			continue
		}
		if err := o.Uplinks.Put(index, row); err != nil {
			return changed, err
		}
		changed = true
	}
	for index := range have {
		if _, ok := n.uplinks[index]; !ok {
			if err := o.Uplinks.Delete(index); err != nil {
				return changed, err
			}
			changed = true
		}
	}
	return changed, nil
}

// outward reports whether clients may call a service at addresses that are the host's.
func outward(s service.Service) bool { return s.Frontend.Addr().IsUnspecified() }

// refreshFor brings the host's rows up to date before services are written, if they matter to one of them or to an
// uplink.
func refreshFor(ctx context.Context, o *objects.Objects, want []service.Service) error {
	var index uint32
	none := o.Uplinks.Map.NextKey(nil, &index) != nil
	if none && !slices.ContainsFunc(want, outward) {
		return nil
	}
	return o.WithLock(ctx, func() error { return refresh(o) })
}
