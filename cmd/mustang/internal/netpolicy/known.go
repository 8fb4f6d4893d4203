// SPDX-License-Identifier: Apache-2.0

package netpolicy

import (
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
	cluster bool // whether an agent follows one
}

// know reads what a datapath decides by.
func know(d *datapath.Datapath) (k known, err error) {
	if k.Snapshot, err = d.Policies().Snapshot(); err != nil {
		return k, err
	}
	if k.listed, err = d.Policies().List(); err != nil {
		return k, err
	}
	k.audited, err = d.Policies().Audited()
	return k, err
}

// end tells of which pod an address is.
func (k known) end(a netip.Addr) endJSON {
	e := endJSON{Address: a.String()}
	for _, p := range k.Pods {
		if !p.HostNetwork && slices.ContainsFunc(p.Addresses, func(of netip.Addr) bool { return of.Unmap() == a }) {
			e.Pod, e.Labels = p.Namespace+"/"+p.Name, p.Labels
		}
	}
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
