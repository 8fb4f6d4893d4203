// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// Route is a route of a pod, by its device, in the main table.
type Route struct {
	Dst netip.Prefix `json:"dst"`
	// Via is the next hop. In an Attachment it need not be in one of the pod's prefixes,
	// and is invalid in modes without neighbours, where the device alone says where to.
	// In Pod.Routes invalid means the gateway of Dst's family. Else it is a neighbour's
	// address, which in modes that are not Switched only the gateway is.
	Via netip.Addr `json:"gw,omitzero"`
	// MTU and AdvMSS are in bytes, for what is sent by this route; 0 is the device's MTU,
	// and what follows from it.
	MTU    int `json:"mtu,omitempty"`
	AdvMSS int `json:"advmss,omitempty"`
	// Priority is the metric: of several routes to Dst the least counts. 0 is the
	// kernel's choice, 0 for IPv4 and 1024 for IPv6.
	Priority int `json:"priority,omitempty"`
}

// IsDefault reports whether the route is a default route.
func (r Route) IsDefault() bool { return r.Dst.IsValid() && r.Dst.Bits() == 0 }

// What routes can have: the kernel takes larger ones for the largest (ip_metrics_convert).
const (
	maxAdvMSS   = 65535 - 40
	maxPriority = 1<<32 - 1
)

// ValidateRoutes reports what is wrong with the pod's routes, by the keys that
// configurations of CNI have for them, in a link mode that is Switched or not.
func (p Pod) ValidateRoutes(network Network, switched bool) error {
	for i, r := range p.Routes {
		key, err := p.judge(r, network, switched)
		if slices.ContainsFunc(p.Routes[:i], func(o Route) bool { return o.Dst == r.Dst && o.Priority == r.Priority }) {
			key, err = "dst", fmt.Errorf("%v is there twice", r.Dst)
		}
		if err != nil {
			return fmt.Errorf("routes[%d].%s: %w", i, key, err)
		}
	}
	return nil
}

// judge returns what is wrong with a route, and at which key.
func (p Pod) judge(r Route, network Network, switched bool) (key string, err error) {
	ofFamily := func(addr netip.Addr) bool { return addr.Is4() == r.Dst.Addr().Is4() }
	own, _ := network.gateway(r.Dst.Addr())
	least := minMTU
	if r.Dst.Addr().Is6() {
		least = minMTU6
	}
	switch {
	case !r.Dst.IsValid():
		return "dst", errors.New("missing: want a prefix like 10.9.0.0/16")
	case r.Dst != r.Dst.Masked() || r.Dst.Addr().Is4In6():
		return "dst", fmt.Errorf("%v is no network's prefix, like %v", r.Dst, r.Dst.Masked())
	case !slices.ContainsFunc(p.Addresses, ofFamily):
		return "dst", fmt.Errorf("%v is of a family that the pod has no address of", r.Dst)
	case switched && r.Dst == own.Masked():
		return "dst", fmt.Errorf("%v is the pods' own network, in which they reach each other without a route", r.Dst)
	case r.MTU != 0 && (r.MTU < least || r.MTU > network.mtu()):
		return "mtu", fmt.Errorf("%d is not between %d and the %d of the pod's device", r.MTU, least, network.mtu())
	case r.AdvMSS < 0 || r.AdvMSS > maxAdvMSS:
		return "advmss", fmt.Errorf("%d is not between 0 and %d", r.AdvMSS, maxAdvMSS)
	case r.Priority < 0 || r.Priority > maxPriority:
		return "priority", fmt.Errorf("%d is not between 0 and %d", r.Priority, maxPriority)
	case !r.Via.IsValid():
		return "", nil
	case !ofFamily(r.Via):
		return "gw", fmt.Errorf("%v is not of the family of %v", r.Via, r.Dst)
	case switched && r.Via.Is4() && own.Contains(r.Via) && own.Bits() < 31 && !(own.Contains(r.Via.Prev()) && own.Contains(r.Via.Next())):
		return "gw", fmt.Errorf("%v is no host's address in %v", r.Via, own.Masked())
	case slices.Contains(p.Addresses, r.Via):
		return "gw", fmt.Errorf("%v is the pod's own address", r.Via)
	case !switched && r.Via != own.Addr():
		return "gw", fmt.Errorf("%v can't be reached: the pod's only neighbour is the host, %v", r.Via, own.Addr())
	case switched && !own.Contains(r.Via) && r.Via != network.hop(own) && !isLinkLocal(r.Via):
		return "gw", fmt.Errorf("%v can't be reached: it is not in the pods' network, %v", r.Via, own.Masked())
	}
	return "", nil
}

// isLinkLocal reports whether addr can be a router's on any network (RFC 4861).
func isLinkLocal(addr netip.Addr) bool {
	return addr.Is6() && !addr.Is4In6() && addr.IsLinkLocalUnicast() && addr.Zone() == ""
}

// destinations are where a pod needs routes to by its next hops: everywhere, or to the
// network alone if its default routes are elsewhere, and only in modes that are not
// switched, since otherwise the prefix is on the device as it is.
func (p Pod) destinations(network Network, switched bool) []netip.Prefix {
	var out []netip.Prefix
	for _, addr := range p.Addresses {
		dst := everywhere(addr)
		if p.Secondary {
			gateway, ok := network.gateway(addr)
			if !ok || switched {
				continue
			}
			dst = gateway.Masked()
		}
		if !slices.Contains(out, dst) {
			out = append(out, dst)
		}
	}
	return out
}

// withRoutes is the configuration with the pod's routes. Those that are given take the
// place of the ones that the pod would have to the same destinations.
func (i interior) withRoutes(network Network, pod Pod, switched bool) interior {
	given := slices.DeleteFunc(slices.Clone(pod.Routes), func(r Route) bool {
		return pod.Secondary && r.IsDefault() && r.Priority == 0
	})
	for _, dst := range pod.destinations(network, switched) {
		if !slices.ContainsFunc(given, func(r Route) bool { return r.Dst == dst }) {
			i.routes = append(i.routes, route{dst: dst, via: i.hop(dst)})
		}
	}
	for _, r := range given {
		out := route{dst: r.Dst, via: r.Via, mtu: r.MTU, advMSS: r.AdvMSS, priority: r.Priority}
		if !r.Via.IsValid() || !switched {
			out.via = i.hop(r.Dst)
		}
		i.routes = append(i.routes, out)
	}
	return i
}

// hop is the next hop of dst's family; invalid in layer 3.
func (i interior) hop(dst netip.Prefix) netip.Addr {
	for _, hop := range i.hops {
		if hop.Is4() == dst.Addr().Is4() {
			return hop
		}
	}
	return netip.Addr{}
}
