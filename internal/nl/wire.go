// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"fmt"

	"github.com/vishvananda/netlink"
)

// WireEnd is one end of a wire: a device of the given name in a namespace.
type WireEnd struct {
	Namespace *Namespace
	Name      string
}

// AddWire joins two namespaces by a veth pair, as a cable joins two network
// cards. Both ends are created where they belong and are up when it returns.
// The MTU is in bytes. If it fails, there is no device left.
func AddWire(a, b WireEnd, mtu int) (err error) {
	fail := func(err error) error {
		return fmt.Errorf("wire %s in %q to %s in %q: %w", a.Name, a.Namespace.Name(), b.Name, b.Namespace.Name(), err)
	}
	near, err := a.Namespace.Netlink()
	if err != nil {
		return fail(err)
	}
	defer near.Close()
	far, err := b.Namespace.Netlink()
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
