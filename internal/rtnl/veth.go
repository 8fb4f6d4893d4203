// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"errors"
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
func AddVeth(a, b VethEnd, mtu int) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = a.Name, mtu
	pair := &netlink.Veth{LinkAttrs: attrs, PeerName: b.Name, PeerMTU: uint32(mtu), PeerNamespace: netlink.NsFd(b.Namespace.FD())}
	near, far := In(a.Namespace), In(b.Namespace)
	err := near.with(func(handle *netlink.Handle) error {
		if err := handle.LinkAdd(pair); err != nil {
			return err
		}
		err := errors.Join(near.SetUp(a.Name, true), far.SetUp(b.Name, true))
		if err != nil {
			_ = handle.LinkDel(pair)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("add veth pair %s in %q and %s in %q: %w", a.Name, a.Namespace.Name(), b.Name, b.Namespace.Name(), err)
	}
	return nil
}
