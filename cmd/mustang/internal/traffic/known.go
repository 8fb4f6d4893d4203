// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"errors"
	"fmt"
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
	e.Elsewhere = e.Pod != "" && !slices.ContainsFunc(k.Pods, func(p policy.Pod) bool {
		return p.Node == k.Node &&
			p.Namespace+"/"+p.Name == e.Pod
	})
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

// ends returns the addresses of both ends. Of two pods that have both families, they are those of IPv4, and other those
// of IPv6.
func (k known) ends(source, destination string) (f, other policy.Flow, err error) {
	from, fromErr := netip.ParseAddr(source)
	to, toErr := netip.ParseAddr(destination)
	from, to = from.Unmap(), to.Unmap()
	switch {
	case from.Is6() && from.IsLinkLocalUnicast(), to.Is6() && to.IsLinkLocalUnicast():
		return f, other, cli.Usage(errors.New("an address is link-local: name the pod, or another address of it"))
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

// familyError is that a pod has no address of a family.
type familyError struct {
	pod string
	v4  bool
}

func (e *familyError) Error() string {
	return fmt.Sprintf("pod %s lacks an %s address", e.pod, map[bool]string{true: "IPv4", false: "IPv6"}[e.v4])
}

// pod returns the address of a pod, of the same family as like. If pods of several nodes have the name, this node's pod
// is returned.
func (k known) pod(text string, like netip.Addr) (netip.Addr, error) {
	namespace, name, ok := strings.Cut(text, "/")
	if !ok {
		return netip.Addr{}, cli.Usage(fmt.Errorf("%q: want an address or NAMESPACE/NAME of a pod", text))
	}
	found := false
	for _, here := range []bool{true, false} {
		for _, p := range k.Pods {
			if p.Namespace == namespace && p.Name == name && (p.Node == k.Node) == here {
				for _, a := range p.Addresses {
					if a = a.Unmap(); a.Is4() == like.Is4() {
						return a, nil
					}
				}
				found = true
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
