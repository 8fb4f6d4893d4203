// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"fmt"

	"github.com/vishvananda/netlink"

	"mustang/internal/netns"
)

// VethEnd is one end of a veth pair.
type VethEnd struct {
	Namespace *netns.Namespace
	Name      string
}

// AddVeth joins two namespaces by a veth pair and sets both ends up. It creates each end in its own namespace. The MTU
// is in bytes. After an error no device is left.
func AddVeth(a, b VethEnd, mtu int) (err error) {
	fail := func(err error) error {
		return fmt.Errorf("add veth pair %s in %q and %s in %q: %w", a.Name, a.Namespace.Name(), b.Name, b.Namespace.Name(), err)
	}
	near, err := In(a.Namespace).Handle()
	if err != nil {
		return fail(err)
	}
	defer near.Close()
	far, err := In(b.Namespace).Handle()
	if err != nil {
		return fail(err)
	}
	defer far.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = a.Name, mtu
	pair := &netlink.Veth{LinkAttrs: attrs, PeerName: b.Name, PeerMTU: uint32(mtu), PeerNamespace: netlink.NsFd(b.Namespace.FD())}
	if err := near.LinkAdd(pair); err != nil {
		return fail(err)
	}
	defer func() {
		if err != nil {
			_ = near.LinkDel(pair)
		}
	}()
	for _, end := range []struct {
		handle *netlink.Handle
		name   string
	}{{near, a.Name}, {far, b.Name}} {
		link, err := end.handle.LinkByName(end.name)
		if err != nil {
			return fail(err)
		}
		if err := end.handle.LinkSetUp(link); err != nil {
			return fail(err)
		}
	}
	return nil
}
