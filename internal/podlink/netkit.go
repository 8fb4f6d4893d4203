// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"github.com/vishvananda/netlink"
)

// newNetkit is the mode that routes by netkit devices in layer 3 mode, which is
// the kernel's default.
func newNetkit() Mode {
	return routed{name: "netkit", wiring: netkitPair{mode: netlink.NETKIT_MODE_L3}, layer3: true}
}

// newNetkitL2 is the same with Ethernet, hence like veth.
func newNetkitL2() Mode {
	return routed{name: "netkit-l2", wiring: netkitPair{mode: netlink.NETKIT_MODE_L2}}
}

// netkitPair makes the ends of a link as a pair of netkit devices. The host's is
// the primary one, by which alone the pair can be configured.
type netkitPair struct{ mode netlink.NetkitMode }

func (netkitPair) kind() string { return "netkit" }

func (netkitPair) needs() Need { return NeedsNothing }

func (n netkitPair) requires() requirement {
	return requirement{
		feature: "netkit devices", module: "netkit", since: "6.7",
		try: func(s side) error {
			link := &netlink.Netkit{LinkAttrs: attrs(probeName), Mode: n.mode}
			peer := attrs("probe1")
			link.SetPeerAttrs(&peer)
			return s.LinkAdd(link)
		},
	}
}

func (n netkitPair) add(host, inside side, network Network, pod Pod) (_ pair, err error) {
	link := &netlink.Netkit{
		LinkAttrs: attrs(pod.HostIfName),
		Mode:      n.mode,
		Scrub:     netlink.NETKIT_SCRUB_DEFAULT,
		PeerScrub: netlink.NETKIT_SCRUB_DEFAULT,
		// Without a program, packets pass. The library's constants for that are 0.
		Policy:     netlink.NETKIT_POLICY_FORWARD,
		PeerPolicy: netlink.NETKIT_POLICY_FORWARD,
	}
	peer := attrs(pod.IfName)
	peer.Namespace = netlink.NsFd(pod.Namespace.FD())
	link.MTU, peer.MTU = network.mtu(), network.mtu()
	if n.mode == netlink.NETKIT_MODE_L2 { // in layer 3 mode they have none
		if link.HardwareAddr, err = newMAC(); err != nil {
			return pair{}, err
		}
		if peer.HardwareAddr, err = pod.mac(); err != nil {
			return pair{}, err
		}
	}
	link.SetPeerAttrs(&peer)
	return addPair(host, inside, pod, link)
}

func (n netkitPair) check(c *checker, host, inside side, ends pair) {
	c.pair(host, inside, ends)
	primary, ok := ends.host.(*netlink.Netkit)
	if c.err != nil || !ok {
		return
	}
	names := map[netlink.NetkitMode]string{netlink.NETKIT_MODE_L2: "layer 2", netlink.NETKIT_MODE_L3: "layer 3"}
	if primary.Mode != n.mode {
		c.add("device %q in %q is in %s mode, not %s", primary.Name, host.ns.Name(), names[primary.Mode], names[n.mode])
	}
	if !primary.IsPrimary() {
		c.add("device %q in %q is not the primary one of its pair", primary.Name, host.ns.Name())
	}
	if primary.Policy != netlink.NETKIT_POLICY_FORWARD {
		c.add("device %q in %q drops what no program passes on", primary.Name, host.ns.Name())
	}
	if primary.PeerPolicy != netlink.NETKIT_POLICY_FORWARD {
		c.add("the peer of device %q in %q drops what no program passes on", primary.Name, host.ns.Name())
	}
}
