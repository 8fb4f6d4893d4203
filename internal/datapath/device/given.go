// SPDX-License-Identifier: Apache-2.0

package device

import (
	"net"
	"net/netip"
	"slices"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
	"mustang/internal/policy"
)

// Given tells which parts of a Spec somebody has named.
type Given struct {
	Addresses, Allowed, Guard bool
	Namespace, Name, Labels   bool // of the pod
}

// Keep takes over what the endpoint of the device has and is not given: what root of the pod has set on its device does
// not count. It returns the number of the endpoint, 0 if there is none. The caller has the lock of the rows.
func (d *Device) Keep(o *objects.Objects, given Given) (id uint32, err error) {
	var addresses []netip.Addr
	var have objects.Endpoint
	for row, err := range o.Endpoints.All() {
		if err != nil {
			return 0, err
		}
		if d.is(row.Value) {
			addresses, have = append(addresses, rows.DecodeAddr(row.Key)), row.Value
		}
	}
	if len(addresses) == 0 {
		return 0, nil
	}
	sender, known, err := o.Senders.Get(SenderKey(!d.Point.OnPod(), d.Netns, d.IfIndex))
	if err != nil {
		return 0, err
	}
	if known {
		d.keepSender(sender, given)
	}
	if !given.Addresses {
		slices.SortFunc(addresses, netip.Addr.Compare)
		d.Addresses = apart(addresses, d.Allowed)
	}
	if d.fixedMAC {
		d.PodMAC = slices.Clone(net.HardwareAddr(have.Path.PodMac[:]))
	}
	d.Flags &^= objects.EndpointPeer &^ have.Path.Flags // its rate may be limited
	return have.Id, nil
}

// is reports whether a row is of an endpoint on this device. The kernel reuses no cookie of a namespace.
func (d *Device) is(row objects.Endpoint) bool {
	onPod := row.Path.Flags&objects.EndpointOnHost == 0
	return onPod == d.Point.OnPod() && int(row.Path.Ifindex) == d.IfIndex && row.Netns == d.Netns
}

// keepSender takes over what the source guard lets pass.
func (d *Device) keepSender(have objects.Sender, given Given) {
	if !given.Allowed {
		d.Allowed = nil
		for _, p := range have.Prefix[:have.Prefixes] {
			d.Allowed = append(d.Allowed, rows.DecodePrefix(p.Addr, p.Mask))
		}
	}
	if !given.Guard {
		d.Unguarded = have.Flags&objects.SenderUnguarded != 0
	}
	d.DHCP = have.Flags&objects.SenderDHCP != 0
	if d.Netns != 0 {
		d.LinkLocal = rows.DecodeAddr(have.LinkLocal)
	}
}

// Merge returns what policies may know of a pod of which they knew something.
func (g Given) Merge(have, want policy.Pod) *policy.Pod {
	if !g.Namespace && have.Namespace != "" {
		want.Namespace = have.Namespace
	}
	if !g.Name {
		want.Name = have.Name
	}
	if !g.Labels {
		want.Labels = have.Labels
	}
	want.Ports = have.Ports
	return &want
}

// apart returns the addresses without those that a pod is allowed to use besides its own. A router's own may be in a
// network that it is allowed.
func apart(all []netip.Addr, allowed []netip.Prefix) []netip.Addr {
	var own, within []netip.Addr
	for _, a := range all {
		contains := func(p netip.Prefix) bool { return p.Contains(a) }
		switch {
		case !slices.ContainsFunc(allowed, contains):
			own = append(own, a)
		case !slices.ContainsFunc(allowed, func(p netip.Prefix) bool { return p.IsSingleIP() && p.Addr() == a }):
			within = append(within, a)
		}
	}
	found := own
	for _, a := range within {
		if !slices.ContainsFunc(own, func(o netip.Addr) bool { return o.Is4() == a.Is4() }) {
			found = append(found, a)
		}
	}
	return found
}
