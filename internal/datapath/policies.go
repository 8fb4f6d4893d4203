// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net/netip"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/policies"
	"mustang/internal/netns"
	"mustang/internal/policy"
	"mustang/internal/rtnl"
)

// policiesOf returns the handle of the network policies, which know the node by the addresses of the host.
func policiesOf(o *objects.Objects) policies.Policies {
	return policies.Policies{Objects: o, Node: func() (all []netip.Addr, err error) {
		host, err := hostCookie(o)
		if err != nil || host == 0 {
			return nil, err
		}
		err = onHost(host, func(ns *netns.Namespace) error {
			if ns != nil {
				all, err = rtnl.In(ns).Every()
			}
			return err
		})
		return all, err
	}}
}

// writeAdmitted writes the rows of an endpoint with the rule sets that its policies give it, and reports whether
// policies know something else of the endpoint than before.
func (e Endpoints) writeAdmitted(rows []Endpoint, pod *policy.Pod, write func([]Endpoint) error) (changed bool,
	err error) {
	addresses := make([]netip.Addr, len(rows))
	for i, row := range rows {
		addresses[i] = row.IP
	}
	return policiesOf(e.o).Admit(rows[0].ID, addresses, pod, func(sets map[netip.Addr]policy.Sets) error {
		for i := range rows {
			rows[i].sets = sets[netip.AddrFrom16(rows[i].IP.As16())]
		}
		return write(rows)
	})
}
