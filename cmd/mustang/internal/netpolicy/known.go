// SPDX-License-Identifier: Apache-2.0

package netpolicy

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"mustang/internal/datapath"
	"mustang/internal/datapath/policies"
	"mustang/internal/policy"
)

// known is what a datapath decides by.
type known struct {
	policy.Snapshot
	listed  []policies.Listed
	audited bool
	cluster bool                // whether an agent follows one
	shared  map[netip.Addr]bool // link-local addresses that several pods have
}

// know reads what a datapath decides by.
func know(d *datapath.Datapath) (k known, err error) {
	if k.Snapshot, err = d.Policies().Snapshot(); err != nil {
		return k, err
	}
	if k.listed, err = d.Policies().List(); err != nil {
		return k, err
	}
	if k.audited, err = d.Policies().Audited(); err != nil {
		return k, err
	}
	endpoints, err := d.Endpoints().List(context.Background())
	if err == nil {
		err = d.Endpoints().Senders(endpoints)
	}
	k.addLinkLocal(endpoints)
	return k, err
}

// addLinkLocal gives the pods of this node their link-local addresses, as the programs know them: one that two pods have is nobody's, and
// one that the node has too is the node's.
func (k *known) addLinkLocal(endpoints []datapath.Endpoint) {
	of, has := map[netip.Addr]datapath.Endpoint{}, map[netip.Addr]netip.Addr{}
	k.shared = map[netip.Addr]bool{}
	for _, e := range endpoints {
		if !e.LinkLocal.IsValid() {
			continue
		}
		if other, taken := of[e.LinkLocal]; taken && other.ID != e.ID {
			k.shared[e.LinkLocal] = true
		}
		of[e.LinkLocal], has[e.IP] = e, e.LinkLocal
	}
	nobodys := maps.Clone(k.shared)
	for _, n := range k.Nodes {
		for _, a := range n.Addresses {
			nobodys[a.Unmap()] = true
		}
	}
	for i := range k.Pods {
		p := &k.Pods[i]
		if p.HostNetwork || p.Node != k.Node {
			continue
		}
		for _, a := range p.Addresses {
			if local, ok := has[a.Unmap()]; ok && !nobodys[local] && !slices.Contains(p.Addresses, local) {
				p.Addresses = append(slices.Clip(p.Addresses), local)
			}
		}
	}
}

// end tells of which pod an address is.
func (k known) end(a netip.Addr) endJSON {
	e := endJSON{Address: a.String()}
	for _, p := range k.Pods {
		if !p.HostNetwork && slices.ContainsFunc(p.Addresses, func(of netip.Addr) bool { return of.Unmap() == a }) {
			e.Pod, e.Labels = p.Namespace+"/"+p.Name, p.Labels
		}
	}
	e.Elsewhere = e.Pod != "" && !slices.ContainsFunc(k.Pods, func(p policy.Pod) bool { return p.Node == k.Node && p.Namespace+"/"+p.Name == e.Pod })
	return e
}

// describe tells what made a decision, with the name of the rule, and the owners of policies that share a name.
func (k known) describe(o policy.Origin) string {
	text, rule := o.String(), ""
	var owners []string
	for i := range k.listed {
		p := &k.listed[i]
		if p.Off || p.Tier != o.Tier || p.Namespace != o.Namespace || p.Name != o.Name {
			continue
		}
		owners = append(owners, p.Owner.String())
		if r := o.Rule(&p.Policy); r != nil && r.Name != "" {
			rule = " (" + r.Name + ")"
		}
	}
	if len(owners) > 1 {
		return text + ", of a policy by this name of " + strings.Join(owners, " or ")
	}
	return text + rule
}
