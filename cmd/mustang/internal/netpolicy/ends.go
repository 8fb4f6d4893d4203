// SPDX-License-Identifier: Apache-2.0

package netpolicy

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/policy"
)

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
