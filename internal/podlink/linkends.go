// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// linkEnds are the two ends of a pod's link, on the host and in the pod. The pod's is nil if the pod brings its own.
type linkEnds struct{ host, pod netlink.Link }

// linkType creates the two ends of a link, for modes with Traits.HostSide.
type linkType interface {
	// kind is the kernel's name for the kind of both ends.
	kind() string
	// needs is the mode's Traits.Needs.
	needs() Need
	// delivery is the mode's Traits.Delivery.
	delivery() Delivery
	// requirement is the kernel's part.
	requirement() requirement
	// add creates both ends, down, each in its namespace. If it fails it leaves none.
	add(host, inside nsHandle, network Network, pod Pod) (linkEnds, error)
	// check adds the deviations of two devices of that kind from such ends. Either may be nil.
	check(c *checker, host, inside nsHandle, ends linkEnds)
}

// isRelayed reports whether the ends have no carrier until a program opens them.
func isRelayed(t linkType) bool { return t.needs() == NeedsRelay }

// checkNamesFree returns an error that matches fs.ErrExist if the name of an end is taken.
func checkNamesFree(host, inside nsHandle, pod Pod) error {
	if err := host.checkNameFree(pod.HostIfName); err != nil {
		return err
	}
	if inside.ns == nil {
		return nil
	}
	return inside.checkNameFree(pod.IfName)
}

// removeEnds deletes both ends of a link, as far as they exist. Those that the kernel creates as a pair go together.
func removeEnds(t linkType, host, inside nsHandle, pod Pod) error {
	err := host.remove(pod.HostIfName, t.kind())
	if isRelayed(t) && inside.ns != nil {
		err = errors.Join(err, inside.remove(pod.IfName, t.kind()))
	}
	return err
}

// deleteEnds is the Delete of modes with two ends. The pod may be gone.
func deleteEnds(t linkType, network Network, pod Pod) (err error) {
	if err := pod.validateDelete(network); err != nil {
		return err
	}
	host, err := network.openHost()
	if err != nil {
		return err
	}
	defer host.Close()
	var inside nsHandle
	if isRelayed(t) && pod.Namespace != nil {
		if inside, err = network.openPod(pod); err != nil {
			return err
		}
		defer inside.Close()
	}
	return removeEnds(t, host, inside, pod)
}

// addPair creates a device on the host whose peer the kernel creates in the pod.
func addPair(host, inside nsHandle, pod Pod, link netlink.Link) (_ linkEnds, err error) {
	err = host.LinkAdd(link)
	if errors.Is(err, unix.EEXIST) { // the kernel does not say which of the names
		err = errors.Join(checkNamesFree(host, inside, pod), err)
	}
	if err != nil {
		return linkEnds{}, addError(err, pod.HostIfName, link.Type(), host.ns)
	}
	out := linkEnds{host: link} // LinkAdd has set its index
	if out.pod, err = inside.link(pod.IfName); err != nil {
		return linkEnds{}, errors.Join(err, host.remove(pod.HostIfName, link.Type()))
	}
	return out, nil
}

// pair checks that two devices are each other's peer.
func (c *checker) pair(host, inside nsHandle, ends linkEnds) {
	if ends.host != nil && ends.pod != nil && ends.host.Attrs().ParentIndex != ends.pod.Attrs().Index {
		c.add("device %q in %q is not the peer of %q in %q",
			ends.host.Attrs().Name, host.ns.Name(), ends.pod.Attrs().Name, inside.ns.Name())
	}
}

// vethPair is a veth pair.
type vethPair struct{}

func (vethPair) kind() string { return "veth" }

func (vethPair) needs() Need { return NeedsNothing }

func (vethPair) delivery() Delivery { return DeliverToPeer }

func (vethPair) requirement() requirement {
	return requirement{feature: "veth devices", module: "veth", since: "2.6.24", try: func(h nsHandle) error {
		return h.LinkAdd(&netlink.Veth{LinkAttrs: newAttrs(probeName), PeerName: "probe1", PeerTxQLen: -1})
	}}
}

func (vethPair) add(host, inside nsHandle, network Network, pod Pod) (_ linkEnds, err error) {
	link := &netlink.Veth{
		LinkAttrs:     network.attrs(pod.HostIfName),
		PeerName:      pod.IfName,
		PeerNamespace: netlink.NsFd(pod.Namespace.FD()),
		PeerTxQLen:    -1,
	}
	// By default the kernel creates a queue for each CPU and uses one (veth_newlink, drivers/net/veth.c).
	link.NumTxQueues, link.NumRxQueues = 1, 1
	if link.HardwareAddr, err = newMAC(); err != nil {
		return linkEnds{}, err
	}
	if link.PeerHardwareAddr, err = pod.mac(); err != nil {
		return linkEnds{}, err
	}
	return addPair(host, inside, pod, link)
}

func (vethPair) check(c *checker, host, inside nsHandle, ends linkEnds) { c.pair(host, inside, ends) }

// netkitPair is a pair of netkit devices. The host's is the primary one, through which alone the kernel configures the
// pair.
type netkitPair struct{ mode netlink.NetkitMode }

func (netkitPair) kind() string { return "netkit" }

func (netkitPair) needs() Need { return NeedsNothing }

func (netkitPair) delivery() Delivery { return DeliverFromPeer }

func (n netkitPair) requirement() requirement {
	return requirement{
		feature: "netkit devices", module: "netkit", since: "6.7",
		try: func(h nsHandle) error {
			link := &netlink.Netkit{LinkAttrs: newAttrs(probeName), Mode: n.mode}
			peer := newAttrs("probe1")
			link.SetPeerAttrs(&peer)
			return h.LinkAdd(link)
		},
	}
}

func (n netkitPair) add(host, inside nsHandle, network Network, pod Pod) (_ linkEnds, err error) {
	link := &netlink.Netkit{
		LinkAttrs: network.attrs(pod.HostIfName),
		Mode:      n.mode,
		Scrub:     netlink.NETKIT_SCRUB_DEFAULT,
		PeerScrub: netlink.NETKIT_SCRUB_DEFAULT,
		// Without a program, packets pass. The library's constants for that are 0.
		Policy:     netlink.NETKIT_POLICY_FORWARD,
		PeerPolicy: netlink.NETKIT_POLICY_FORWARD,
	}
	peer := network.attrs(pod.IfName)
	peer.Namespace = netlink.NsFd(pod.Namespace.FD())
	if n.mode == netlink.NETKIT_MODE_L2 { // layer 3 has no MAC addresses
		if link.HardwareAddr, err = newMAC(); err != nil {
			return linkEnds{}, err
		}
		if peer.HardwareAddr, err = pod.mac(); err != nil {
			return linkEnds{}, err
		}
	}
	link.SetPeerAttrs(&peer)
	return addPair(host, inside, pod, link)
}

func (n netkitPair) check(c *checker, host, inside nsHandle, ends linkEnds) {
	c.pair(host, inside, ends)
	primary, ok := ends.host.(*netlink.Netkit)
	if !ok {
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
		c.add("device %q in %q drops packets without a program's verdict", primary.Name, host.ns.Name())
	}
	if primary.PeerPolicy != netlink.NETKIT_POLICY_FORWARD {
		c.add("the peer of device %q in %q drops packets without a program's verdict", primary.Name, host.ns.Name())
	}
}

// tuntapEnds are two persistent TUN or TAP devices that a relay connects. Each takes one program (no IFF_MULTI_QUEUE),
// which decides whether packets have a virtio header.
type tuntapEnds struct{ mode netlink.TuntapMode }

func (tuntapEnds) kind() string { return "tun" }

func (tuntapEnds) needs() Need { return NeedsRelay }

func (tuntapEnds) delivery() Delivery { return DeliverToHostDevice }

func (t tuntapEnds) requirement() requirement {
	return requirement{
		feature: "TUN/TAP devices", module: "tun", since: "2.4.0",
		try: func(h nsHandle) error {
			err := t.create(h, probeName)
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO) {
				return errors.Join(unix.EOPNOTSUPP, err) // without the module
			}
			return err
		},
	}
}

func (t tuntapEnds) add(host, inside nsHandle, network Network, pod Pod) (out linkEnds, err error) {
	if err := checkNamesFree(host, inside, pod); err != nil {
		return linkEnds{}, err
	}
	mac, err := newMAC()
	if err != nil {
		return linkEnds{}, err
	}
	if out.host, err = t.addEnd(host, pod.HostIfName, network.mtu(), mac); err != nil || inside.ns == nil {
		return out, err
	}
	mac = pod.MAC
	if mac == nil {
		mac = macOfAddress(pod.Addresses[0])
	}
	out.pod, err = t.addEnd(inside, pod.IfName, network.mtu(), mac)
	if err != nil {
		return linkEnds{}, errors.Join(err, host.remove(pod.HostIfName, t.kind()))
	}
	return out, nil
}

// addEnd creates one end of a link. If it fails it leaves none.
func (t tuntapEnds) addEnd(h nsHandle, name string, mtu int, mac net.HardwareAddr) (_ netlink.Link, err error) {
	if err := t.create(h, name); err != nil {
		return nil, addError(err, name, t.String(), h.ns)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.remove(name, t.kind()))
		}
	}()
	link, err := h.link(name)
	if err != nil {
		return nil, err
	}
	if err := h.LinkSetMTU(link, mtu); err != nil {
		return nil, fmt.Errorf("set MTU of device %q in %q to %d: %w", name, h.ns.Name(), mtu, err)
	}
	if t.mode != netlink.TUNTAP_MODE_TAP { // TUN devices have no MAC address
		return link, nil
	}
	if err := h.LinkSetHardwareAddr(link, mac); err != nil {
		return nil, fmt.Errorf("set MAC address of device %q in %q: %w", name, h.ns.Name(), err)
	}
	return h.link(name)
}

// create creates a persistent device. The kernel creates it in the namespace in which the file is opened.
func (t tuntapEnds) create(h nsHandle, name string) error {
	request, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	request.SetUint16(uint16(t.mode) | unix.IFF_NO_PI | unix.IFF_TUN_EXCL)
	return h.ns.Do(func() error {
		const file = "/dev/net/tun"
		fd, err := unix.Open(file, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open %s: %w", file, err)
		}
		defer unix.Close(fd)
		if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
			return err
		}
		return unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 1)
	})
}

// String is the name of the kind of device for users.
func (t tuntapEnds) String() string { return tuntapName(t.mode) }

func tuntapName(mode netlink.TuntapMode) string {
	if mode == netlink.TUNTAP_MODE_TAP {
		return "TAP"
	}
	return "TUN"
}

// macOfAddress returns the same MAC address for each IP address. Neighbours of an earlier pod with the address thus
// reach the new one, although a device without a carrier can't announce it.
func macOfAddress(addr netip.Addr) net.HardwareAddr {
	sum := sha256.Sum256(addr.AsSlice())
	sum[0] = sum[0]&^1 | 2
	return sum[:6]
}

func (t tuntapEnds) check(c *checker, host, inside nsHandle, ends linkEnds) {
	t.checkEnd(c, host, ends.host)
	t.checkEnd(c, inside, ends.pod)
}

func (t tuntapEnds) checkEnd(c *checker, h nsHandle, link netlink.Link) {
	device, ok := link.(*netlink.Tuntap)
	if !ok {
		return
	}
	if device.Mode != t.mode {
		c.add("device %q in %q is a %s device, not %s", device.Name, h.ns.Name(), tuntapName(device.Mode), t)
	}
	if device.NonPersist {
		c.add("device %q in %q is not persistent", device.Name, h.ns.Name())
	}
}
