// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
	"mustang/internal/linkinfo"
	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/service"
)

func isElsewhere(o *objects.Objects, host uint64) (bool, error) {
	state, err := o.NodeState.IDs()
	return state.Host != 0 && state.Host != host, err
}

// Host returns the cookie of the network namespace that all endpoints and uplinks are of; 0 if there is none yet.
func (d *Datapath) Host() (uint64, error) {
	state, err := d.objects.NodeState.IDs()
	return state.Host, err
}

// OnHost calls fn with the network namespace of all endpoints and uplinks, or nil if it lacks a name and a process.
// Without a host it does nothing.
func (d *Datapath) OnHost(fn func(cookie uint64, host *netns.Namespace) error) error {
	cookie, err := d.Host()
	if err != nil || cookie == 0 {
		return err
	}
	return onHost(cookie, func(host *netns.Namespace) error { return fn(cookie, host) })
}

// hostCookie returns the cookie of the host: the host of endpoints and uplinks or, without them, the lowest cookie
// among hosts whose sockets are translated. 0: none.
func hostCookie(o *objects.Objects) (uint64, error) {
	state, err := o.NodeState.IDs()
	if err != nil || state.Host != 0 {
		return state.Host, err
	}
	host := uint64(0)
	for row, err := range o.Namespaces.All() {
		if err != nil {
			return 0, err
		}
		if row.Value.Flags&objects.NamespaceHost != 0 && (host == 0 || row.Key < host) {
			host = row.Key
		}
	}
	return host, nil
}

// onHost calls fn with the network namespace that has the cookie. The thread's own namespace is tried first. If the
// namespace cannot be found, fn gets nil.
func onHost(cookie uint64, fn func(*netns.Namespace) error) error {
	own, err := netns.Current()
	if err != nil {
		return err
	}
	defer func() { _ = own.Close() }()
	switch c, err := own.Cookie(); {
	case err != nil:
		return err
	case c == cookie:
		return fn(own)
	case cookie == 0:
		return fn(nil)
	}
	return withNamespaces(func(by map[uint64]*netns.Namespace) error { return fn(by[cookie]) })
}

// withNamespaces calls fn with the network namespaces that have a name or a process, by their cookies; the calling
// thread's too.
func withNamespaces(fn func(by map[uint64]*netns.Namespace) error) (err error) {
	snapshot, err := linkinfo.Take()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, snapshot.Close()) }()
	own, err := netns.Current()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, own.Close()) }()
	by := make(map[uint64]*netns.Namespace)
	for _, ns := range append([]*netns.Namespace{own}, snapshot.Namespaces()...) {
		cookie, err := ns.Cookie()
		if err != nil {
			return err
		}
		by[cookie] = ns
	}
	return fn(by)
}

type hostRows struct {
	addresses map[objects.Addr]bool
	uplinks   map[int]objects.Device
}

// readHost reads the addresses of the host and of its uplinks: of these, the first lasting one of each family.
func readHost(ns *netns.Namespace, uplinks []int) (hostRows, error) {
	n := hostRows{make(map[objects.Addr]bool), make(map[int]objects.Device)}
	addresses, err := rtnl.In(ns).Addresses()
	first, last, portsErr := sourcePorts(ns)
	if err := errors.Join(err, portsErr); err != nil {
		return n, err
	}
	for _, index := range uplinks {
		n.uplinks[index] = objects.Device{PortFirst: first, PortLast: last}
	}
	for _, a := range addresses {
		addr := rows.EncodeAddr(a.Addr)
		n.addresses[addr] = true
		row, isUplink := n.uplinks[a.Index]
		if !isUplink || !a.Lasting {
			continue
		}
		source := &row.V6
		if a.Addr.Is4() {
			source = &row.V4
		}
		if *source == (objects.Addr{}) {
			*source = addr
		}
		n.uplinks[a.Index] = row
	}
	return n, nil
}

// sourcePorts returns the range of source ports for packets that the host forwards in its own name. It is the larger
// of the ranges below and above the kernel's ports for sockets or, if both are small, all ports.
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

// refreshFor updates the rows of the host's addresses and uplinks before services are written, if one of the services
// or an uplink needs them. It does nothing if the host is unknown, or its network namespace is unreachable.
func refreshFor(ctx context.Context, o *objects.Objects, want []service.Service) error {
	have, err := o.UplinkRows()
	if err != nil {
		return err
	}
	outward := func(s service.Service) bool { return s.Frontend.Addr().IsUnspecified() }
	if len(have) == 0 && !slices.ContainsFunc(want, outward) {
		return nil
	}
	return o.WithLock(ctx, func() error {
		host, err := hostCookie(o)
		if err != nil || host == 0 {
			return err
		}
		attached, err := Uplinks{o}.attached(func(objects.Link) error { return nil })
		if err != nil {
			return err
		}
		return onHost(host, func(ns *netns.Namespace) error {
			if ns == nil {
				return nil
			}
			n, err := readHost(ns, indexesOf(attached, host))
			if err == nil {
				_, err = n.write(o)
			}
			return err
		})
	})
}

// write makes the rows equal to n, and reports whether an uplink's row changed. The filter gets a node port at an
// address before the address is stored.
func (n hostRows) write(o *objects.Objects) (changed bool, err error) {
	have, err := o.NodeAddresses.Rows()
	if err != nil {
		return false, err
	}
	stays := len(have)
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
			stays--
		}
	}
	changed, err = n.writeUplinks(o)
	if err == nil && (changed || stays < len(have) || len(added) > 0) {
		err = o.NodeState.Invalidate()
	}
	return changed, err
}

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

func at(keys []objects.ServiceKey, addresses []objects.Addr) (all []objects.ServiceKey) {
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

// filterKeys returns the frontends that the filter needs for rows of services. The caller has the lock of the rows.
func filterKeys(o *objects.Objects, keys []objects.ServiceKey) ([]objects.ServiceKey, error) {
	if !slices.ContainsFunc(keys, func(k objects.ServiceKey) bool { return rows.DecodeAddr(k.Addr).IsUnspecified() }) {
		return keys, nil
	}
	addresses, err := o.NodeAddresses.Rows()
	return slices.Concat(keys, at(keys, slices.Collect(maps.Keys(addresses)))), err
}

func (n hostRows) writeUplinks(o *objects.Objects) (changed bool, err error) {
	have, err := o.UplinkRows()
	for index, row := range n.uplinks {
		if h, ok := have[index]; err == nil && (!ok || h != row) {
			changed, err = true, o.Devices.Put(uint64(index), row)
		}
	}
	for index := range have {
		if _, ok := n.uplinks[index]; err == nil && !ok {
			changed, err = true, o.Devices.Delete(uint64(index))
		}
	}
	return changed, err
}

func sourceOf(row objects.Device) []netip.Addr {
	addresses := []netip.Addr{}
	for _, addr := range []objects.Addr{row.V4, row.V6} {
		if addr != (objects.Addr{}) {
			addresses = append(addresses, rows.DecodeAddr(addr))
		}
	}
	return addresses
}
