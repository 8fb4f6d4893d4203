// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"mustang/cmd/mustang/internal/cli"
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

// ends returns the addresses of both ends. Of two pods that have both families, they are those of IPv4, and other those of IPv6.
func (k known) ends(source, destination string) (f, other policy.Flow, err error) {
	from, fromErr := k.address(source)
	to, toErr := k.address(destination)
	switch {
	case errors.Is(fromErr, errShared):
		return f, other, fromErr
	case errors.Is(toErr, errShared):
		return f, other, toErr
	case fromErr == nil && toErr == nil && from.Is4() != to.Is4():
		return f, other, cli.Usage(fmt.Errorf("%s and %s are of two families, IPv4 and IPv6", source, destination))
	case fromErr == nil && toErr == nil:
	case fromErr == nil:
		to, err = k.pod(destination, from)
	case toErr == nil:
		from, err = k.pod(source, to)
	default:
		return k.betweenPods(source, destination)
	}
	return policy.Flow{Source: from, Destination: to}, other, err
}

// betweenPods returns the addresses of two pods, in each family that both have.
func (k known) betweenPods(source, destination string) (f, other policy.Flow, err error) {
	var found []policy.Flow
	for _, like := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		from, fromErr := k.pod(source, like)
		to, toErr := k.pod(destination, like)
		var none *familyError
		for _, err := range []error{fromErr, toErr} {
			if err != nil && !errors.As(err, &none) {
				return f, other, err
			}
		}
		if none == nil {
			found = append(found, policy.Flow{Source: from, Destination: to})
		}
	}
	switch len(found) {
	case 0:
		return f, other, fmt.Errorf("pods %s and %s lack addresses of one family", source, destination)
	case 1:
		return found[0], other, nil
	}
	return found[0], found[1], nil
}

// errShared matches the error about a link-local address of several pods.
var errShared = errors.New("is the link-local address of several pods: name one of them")

// address parses an address. Its zone says nothing here.
func (k known) address(text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	a = a.Unmap().WithZone("")
	if err == nil && k.shared[a] {
		err = fmt.Errorf("%s %w", a, errShared)
	}
	return a, err
}

// familyError is that a pod has no address of a family.
type familyError struct {
	pod string
	v4  bool
}

func (e *familyError) Error() string {
	return fmt.Sprintf("pod %s lacks an %s address", e.pod, map[bool]string{true: "IPv4", false: "IPv6"}[e.v4])
}

// pod returns the address of a pod that talks to another address: one of its family, and a link-local one to a link-local one if it has one. Of
// pods by one name, that of this node comes first.
func (k known) pod(text string, like netip.Addr) (netip.Addr, error) {
	namespace, name, ok := strings.Cut(text, "/")
	if !ok {
		return netip.Addr{}, cli.Usage(fmt.Errorf("%q: want an address or NAMESPACE/NAME of a pod", text))
	}
	var all []netip.Addr
	found := false
	for _, here := range []bool{true, false} {
		for _, p := range k.Pods {
			if p.Namespace == namespace && p.Name == name && (p.Node == k.Node) == here {
				found, all = true, append(all, p.Addresses...)
			}
		}
	}
	local := func(a netip.Addr) bool { return a.Is6() && a.IsLinkLocalUnicast() }
	for _, want := range []bool{local(like), false} {
		for _, a := range all {
			if a = a.Unmap(); a.Is4() == like.Is4() && local(a) == want {
				return a, nil
			}
		}
	}
	switch {
	case found:
		return netip.Addr{}, &familyError{text, like.Is4()}
	case k.cluster:
		return netip.Addr{}, fmt.Errorf("no pod %s: name a pod (kubectl get pods), not a Deployment or Service", text)
	}
	return netip.Addr{}, fmt.Errorf("no pod %s: mustang ep ls has those that are known (ep add --pod names one)", text)
}
