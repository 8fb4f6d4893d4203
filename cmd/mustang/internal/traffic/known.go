// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/datapath"
	"mustang/internal/datapath/policies"
	"mustang/internal/policy"
	"mustang/internal/service"
)

// known is the state of a datapath that decides verdicts.
type known struct {
	policy.Snapshot
	listed  []policies.Listed
	audited bool
	cluster bool // an agent follows a cluster here: it has written a policy, or a service
}

func know(ctx context.Context, d *datapath.Datapath) (k known, err error) {
	if k.Snapshot, err = d.Policies().Snapshot(); err != nil {
		return k, err
	}
	if k.listed, err = d.Policies().List(); err != nil {
		return k, err
	}
	if k.audited, err = d.Policies().Audited(); err != nil {
		return k, err
	}
	services, err := d.Services().List(ctx)
	k.cluster = slices.ContainsFunc(k.listed, func(p policies.Listed) bool { return p.Owner == service.Agent }) ||
		slices.ContainsFunc(services, func(s service.Service) bool { return s.Owner == service.Agent })
	return k, err
}

// describe returns the origin of a decision, with the name of the rule, and the owners of policies that share a name.
func (k known) describe(o policy.Origin) string {
	rule := ""
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
		rule = ", of a policy by this name of " + strings.Join(owners, " or ")
	}
	return o.String() + rule
}

// flows returns the connection between two ends: once for each address family that both ends have, IPv4 first.
func (k known) flows(source, destination string) (found []policy.Flow, err error) {
	from, err := k.addresses(source)
	if err != nil {
		return nil, err
	}
	to, err := k.addresses(destination)
	if err != nil {
		return nil, err
	}
	for _, like := range []func(netip.Addr) bool{netip.Addr.Is4, netip.Addr.Is6} {
		i, j := slices.IndexFunc(from, like), slices.IndexFunc(to, like)
		if i >= 0 && j >= 0 {
			found = append(found, policy.Flow{Source: from[i], Destination: to[j]})
		}
	}
	if len(found) > 0 {
		return found, nil
	}
	lacks := func(pod string, other netip.Addr) error {
		return fmt.Errorf("pod %s lacks an %s address", pod, map[bool]string{true: "IPv4", false: "IPv6"}[other.Is4()])
	}
	switch ofPod, toPod := isPod(source), isPod(destination); {
	case ofPod && toPod:
		return nil, fmt.Errorf("pods %s and %s lack addresses of one family", source, destination)
	case ofPod:
		return nil, lacks(source, to[0])
	case toPod:
		return nil, lacks(destination, from[0])
	}
	return nil, cli.Usage(fmt.Errorf("%s and %s are of two families, IPv4 and IPv6", source, destination))
}

func isPod(end string) bool { return strings.Contains(end, "/") }

// addresses returns the address that is an end, or the addresses of the pod that is one. Of pods that have the same
// name on several nodes, the pod of this node comes first.
func (k known) addresses(end string) (all []netip.Addr, err error) {
	if !isPod(end) {
		addr, err := netip.ParseAddr(end)
		switch addr = addr.Unmap(); {
		case err != nil:
			err = fmt.Errorf("%q: want an address or NAMESPACE/NAME of a pod", end)
		case addr.Is6() && addr.IsLinkLocalUnicast():
			err = errors.New("an address is link-local: name the pod, or another address of it")
		}
		return []netip.Addr{addr}, cli.Usage(err)
	}
	found := false
	for _, here := range []bool{true, false} {
		for _, p := range k.Pods {
			if p.Namespace+"/"+p.Name == end && (p.Node == k.Node) == here {
				found = true
				for _, a := range p.Addresses {
					all = append(all, a.Unmap())
				}
			}
		}
	}
	switch {
	case found:
		return all, nil
	case k.cluster:
		return nil, fmt.Errorf("no pod %s: name a pod (kubectl get pods), not a Deployment or Service", end)
	}
	return nil, fmt.Errorf("no pod %s: mustang ep ls lists the pods (ep add --pod names one)", end)
}
