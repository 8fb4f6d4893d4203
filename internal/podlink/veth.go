// SPDX-License-Identifier: Apache-2.0

package podlink

import "github.com/vishvananda/netlink"

// newVeth is the mode that routes by veth pairs.
func newVeth() Mode { return routed{name: "veth", wiring: vethPair{}} }

// vethPair makes the ends of a link as a veth pair.
type vethPair struct{}

func (vethPair) kind() string { return "veth" }

func (vethPair) needs() Need { return NeedsNothing }

func (vethPair) requires() requirement { return needsVeth() }

func (vethPair) add(host, inside side, network Network, pod Pod) (_ pair, err error) {
	link := &netlink.Veth{
		LinkAttrs:     attrs(pod.HostIfName),
		PeerName:      pod.IfName,
		PeerNamespace: netlink.NsFd(pod.Namespace.FD()),
		PeerTxQLen:    -1,
	}
	link.MTU = network.mtu()
	// Left alone, the kernel makes a queue for each CPU and then uses one (veth_newlink, drivers/net/veth.c).
	link.NumTxQueues, link.NumRxQueues = 1, 1
	if link.HardwareAddr, err = newMAC(); err != nil {
		return pair{}, err
	}
	if link.PeerHardwareAddr, err = pod.mac(); err != nil {
		return pair{}, err
	}
	return addPair(host, inside, pod, link)
}

func (vethPair) check(c *checker, host, inside side, ends pair) { c.pair(host, inside, ends) }
