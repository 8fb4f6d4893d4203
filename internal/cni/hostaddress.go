// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"mustang/internal/ipam"
	"mustang/internal/podlink"
)

// keepHostAddresses judges key hostAddresses, by which the gateways are routers of
// somebody else, and keeps the addresses from being given out.
func (c Config) keepHostAddresses() error {
	if c.HostAddresses == nil {
		return nil
	}
	mode, err := podlink.Lookup(c.Link)
	switch {
	case err != nil || !mode.Switched():
		return invalid("hostAddresses: with link %s all that pods send passes the host, which is their only gateway (others can be with: %s)",
			c.Link, strings.Join(linksThat(podlink.Mode.Switched), ", "))
	case c.Masquerade:
		return invalid("masquerade: with hostAddresses what pods send leaves by other routers, past the host, which can hide nothing")
	case len(c.HostAddresses) == 0:
		return invalid("hostAddresses: want an address for one family or both, got none")
	}
	for i, addr := range c.HostAddresses {
		switch {
		case !addr.IsGlobalUnicast() || addr.Is4In6() || addr.Zone() != "":
			return invalid("hostAddresses[%d]: %q is not the address of a host", i, addr)
		case slices.ContainsFunc(c.HostAddresses[:i], sameFamily(addr)):
			return invalid("hostAddresses[%d]: %v is the second of its family", i, addr)
		}
		if err := c.IPAM.keep(addr); err != nil {
			return invalid("hostAddresses[%d]: %v", i, err)
		}
	}
	if err := ipam.Validate(c.IPAM.Sets); c.IPAM.builtIn() && err != nil {
		return invalid("hostAddresses: %v", err)
	}
	return nil
}

// keep has the ranges not give out an address of the host. It has to be in one of
// their subnets, and neither one that no host can have nor the gateway's.
func (i IPAM) keep(addr netip.Addr) error {
	for _, set := range i.Sets {
		first := set[0]
		if !first.Subnet.Contains(addr) {
			continue
		}
		only := ipam.Range{Subnet: first.Subnet, Start: addr, End: addr, Gateway: first.Gateway}
		if only.Validate() != nil {
			return fmt.Errorf("%v is the gateway's, or can be no host's in %v", addr, first.Subnet)
		}
		set[0].Exclude = append(set[0].Exclude, netip.PrefixFrom(addr, addr.BitLen()))
		return nil
	}
	if i.builtIn() {
		return fmt.Errorf("%v is in no subnet of ipam.ranges", addr)
	}
	return nil
}

// ends are the host's own addresses towards pods with the given ones, each with the
// length of its network, and the routers that are others' gateways.
func (c Config) ends(given []address) (own []netip.Prefix, routers []netip.Addr, err error) {
	for _, a := range given {
		host, gateway := a.Gateway, a.Gateway
		if at := slices.IndexFunc(c.HostAddresses, sameFamily(a.Addr())); at >= 0 {
			host = c.HostAddresses[at]
			switch {
			case !gateway.IsValid():
				return nil, nil, invalid("hostAddresses: %v has no gateway beside %v", a, host)
			case host == a.Addr() || !a.Contains(host):
				return nil, nil, invalid("hostAddresses: %v is not another address in the network of %v, which the pod was given", host, a)
			}
			routers = append(routers, gateway)
		}
		if host.IsValid() {
			own = append(own, netip.PrefixFrom(host, a.Bits()))
		}
	}
	return own, routers, nil
}

func sameFamily(as netip.Addr) func(netip.Addr) bool {
	return func(addr netip.Addr) bool { return addr.Is4() == as.Is4() }
}

// unleased is an error if a pod has an address that is to be the host's: one from
// before the configuration said so.
func (a *attachment) unleased(own []netip.Prefix) error {
	if !a.config.IPAM.builtIn() {
		return nil
	}
	store, err := a.plugin.addresses(a.config.Name)
	if err != nil {
		return err
	}
	leases, err := store.Leases()
	for _, lease := range leases {
		if slices.ContainsFunc(own, func(p netip.Prefix) bool { return p.Addr() == lease.Address }) {
			return invalid("the host's address %v is that of a pod still, of %s", lease.Address, lease.Owner)
		}
	}
	return err
}
