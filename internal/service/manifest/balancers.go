// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"cmp"
	"net/netip"
	"slices"

	"mustang/internal/service"
)

// LoadBalancer is the part of a Service that decides which addresses its load balancer has.
type LoadBalancer struct {
	Name    Name
	UID     string
	Created string       // in RFC 3339
	Active  bool         // whether the type is LoadBalancer
	Left    bool         // whether another proxy serves it
	Class   string       // spec.loadBalancerClass
	IPv6    []bool       // the families that it needs an address of
	Wants   string       // spec.loadBalancerIP; empty: any
	Has     []netip.Addr // of its status; not valid: a name
	// Nodes are those with a ready endpoint if externalTrafficPolicy is Local; nil: any node can serve it.
	Nodes map[string]bool
}

// LoadBalancers returns the Services that have an address of a load balancer or need one, the oldest first.
func (c *Cluster) LoadBalancers() (all []LoadBalancer) {
	for n, k := range c.services {
		active := k.Spec.Type == "LoadBalancer"
		if !active && len(k.Status.LoadBalancer.Ingress) == 0 {
			continue
		}
		b := LoadBalancer{Name: n, UID: k.uid, Created: k.created, Active: active, Left: k.skip() != "",
			Class: k.Spec.LoadBalancerClass, Wants: k.Spec.LoadBalancerIP}
		for _, f := range k.Spec.IPFamilies {
			b.IPv6 = append(b.IPv6, f == "IPv6")
		}
		for _, in := range k.Status.LoadBalancer.Ingress {
			addr, _ := netip.ParseAddr(in.IP)
			b.Has = append(b.Has, addr.Unmap())
		}
		if service.Policy(k.Spec.ExternalTrafficPolicy) == service.Local {
			b.Nodes = map[string]bool{}
			for _, slice := range c.of[n] {
				for _, e := range slice.Endpoints {
					if k.stateOf(e) == service.Active {
						b.Nodes[e.node.Value()] = true
					}
				}
			}
		}
		all = append(all, b)
	}
	slices.SortFunc(all, func(a, b LoadBalancer) int {
		return cmp.Or(cmp.Compare(a.Created, b.Created), a.Name.Compare(b.Name))
	})
	return all
}
