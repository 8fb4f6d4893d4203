// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"net"
	"slices"

	"github.com/vishvananda/netlink"
)

// pair is a veth pair, one end on the host and one in a pod.
type pair struct{ host, pod netlink.Link }

// addVeth creates a pair that is down, each end in its namespace. If it fails
// there is none.
func addVeth(host, inside side, network Network, pod Pod) (_ pair, err error) {
	if err := host.mustBeFree(pod.HostIfName); err != nil {
		return pair{}, err
	}
	if err := inside.mustBeFree(pod.IfName); err != nil {
		return pair{}, err
	}
	link := &netlink.Veth{
		LinkAttrs:     attrs(pod.HostIfName),
		PeerName:      pod.IfName,
		PeerNamespace: netlink.NsFd(pod.Namespace.FD()),
		PeerTxQLen:    -1,
	}
	link.MTU = network.mtu()
	if link.HardwareAddr, err = newMAC(); err != nil {
		return pair{}, err
	}
	if link.PeerHardwareAddr, err = newMAC(); err != nil {
		return pair{}, err
	}
	if err := host.LinkAdd(link); err != nil {
		return pair{}, describeAdd(err, pod.HostIfName, "veth", network.Host)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, host.remove(pod.HostIfName, "veth"))
		}
	}()
	var out pair
	if out.host, err = host.link(pod.HostIfName); err != nil {
		return pair{}, err
	}
	if out.pod, err = inside.link(pod.IfName); err != nil {
		return pair{}, err
	}
	return out, nil
}

// deleteVeth deletes the host's end of a pair, and with it the pod's.
func deleteVeth(network Network, pod Pod) error {
	if network.Host == nil {
		return errors.New("the network has no host namespace")
	}
	if err := validateName(pod.HostIfName); err != nil {
		return err
	}
	host, err := openSide(network.Host)
	if err != nil {
		return err
	}
	defer host.Close()
	return host.remove(pod.HostIfName, "veth")
}

func (p pair) attachment(pod Pod, node net.HardwareAddr) Attachment {
	return Attachment{
		IfName:      pod.IfName,
		HostIfName:  pod.HostIfName,
		IfIndex:     p.pod.Attrs().Index,
		HostIfIndex: p.host.Attrs().Index,
		MAC:         macOf(p.pod),
		HostMAC:     macOf(p.host),
		Addresses:   slices.Clone(pod.Addresses),
		NodeMAC:     slices.Clone(node),
	}
}

// pair notes deviations of both ends of a pair, and whether they are one.
func (c *checker) pair(host, inside side, outer, inner wanted) (netlink.Link, netlink.Link) {
	hostLink, podLink := c.device(host, outer), c.device(inside, inner)
	if c.err == nil && hostLink != nil && podLink != nil && hostLink.Attrs().ParentIndex != podLink.Attrs().Index {
		c.add("device %q in %q is not the peer of %q in %q", outer.name, host.ns.Name(), inner.name, inside.ns.Name())
	}
	return hostLink, podLink
}
