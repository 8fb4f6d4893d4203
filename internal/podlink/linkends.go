// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// linkEnds are the two ends of a pod's link, on the host and in the pod. The pod's is nil if the pod brings its own.
type linkEnds struct{ host, pod netlink.Link }

// attachment is the result of Create of a pod with the link ends; node is the host's MAC address on the network.
func (p Pod) attachment(ends linkEnds, node net.HardwareAddr) Attachment {
	out := Attachment{Addresses: slices.Clone(p.Addresses), NodeMAC: slices.Clone(node)}
	if ends.host != nil {
		out.HostIfName, out.HostIfIndex, out.HostMAC = p.HostIfName, ends.host.Attrs().Index, macOf(ends.host)
	}
	if ends.pod != nil {
		out.IfName, out.IfIndex, out.MAC = ends.pod.Attrs().Name, ends.pod.Attrs().Index, macOf(ends.pod)
	}
	return out
}

// linkType is a type of link with two ends, for modes with Traits.HostSide.
type linkType struct {
	kind        string // the kernel's name for the kind of both ends
	relayed     bool   // true if the ends lack a carrier until a program opens them
	delivery    Delivery
	requirement requirement
	add         func(s session) (linkEnds, error) // creates both ends, down, each in its namespace
	// check adds the deviations of two devices of that kind from such ends. Either may be nil. TUN and TAP lack check.
	check func(c *checker, s session, ends linkEnds)
}

func (t linkType) needs() Need {
	if t.relayed {
		return NeedsRelay
	}
	return NeedsNothing
}

// configure configures the pod's end of a link whose other end is configured. When the host's end can send, and
// before it adds the pod's routes, it calls attached. If sending depends on a relay, it does not wait for that.
func (t linkType) configure(s session, ends linkEnds, attached func() error) error {
	if ends.pod != nil {
		if err := s.config.prepare(s.inside, ends.pod); err != nil {
			return err
		}
	}
	if !t.relayed {
		if err := s.host.awaitCarrier(ends.host); err != nil {
			return err
		}
	}
	if err := attached(); err != nil || ends.pod == nil {
		return err
	}
	return s.config.finish(s.inside, ends.pod)
}

// remove deletes both ends of a link, as far as they exist. The kernel deletes pairs together.
func (t linkType) remove(s session) error {
	return errors.Join(s.host.remove(s.pod.HostIfName, t.kind), s.inside.remove(s.pod.IfName, t.kind))
}

func (s session) checkNamesFree() error {
	if err := s.host.checkNameFree(s.pod.HostIfName); err != nil || s.inside.ns == nil {
		return err
	}
	return s.inside.checkNameFree(s.pod.IfName)
}

// addPair creates a device on the host whose peer the kernel creates in the pod.
func (s session) addPair(link netlink.Link) (_ linkEnds, err error) {
	err = s.host.LinkAdd(link)
	if errors.Is(err, unix.EEXIST) { // the kernel does not report which name
		err = errors.Join(s.checkNamesFree(), err)
	}
	if err != nil {
		return linkEnds{}, addError(err, s.pod.HostIfName, link.Type(), s.host.ns)
	}
	s.host.undo.add(func() error { return s.host.remove(s.pod.HostIfName, link.Type()) })
	inside, err := s.inside.link(s.pod.IfName)
	return linkEnds{host: link, pod: inside}, err // LinkAdd has set the index of link
}

func checkPair(c *checker, s session, ends linkEnds) {
	if ends.host != nil && ends.pod != nil && ends.host.Attrs().ParentIndex != ends.pod.Attrs().Index {
		c.add("device %q in %q is not the peer of %q in %q",
			ends.host.Attrs().Name, s.host.ns.Name(), ends.pod.Attrs().Name, s.inside.ns.Name())
	}
}

func veth() linkType {
	try := func(h nsHandle) error {
		return h.LinkAdd(&netlink.Veth{LinkAttrs: newAttrs(probeName), PeerName: "probe1", PeerTxQLen: -1})
	}
	return linkType{
		kind: "veth", delivery: DeliverToPeer, add: addVeth, check: checkPair,
		requirement: requirement{feature: "veth devices", module: "veth", since: "2.6.24", try: try},
	}
}

func addVeth(s session) (_ linkEnds, err error) {
	link := &netlink.Veth{
		LinkAttrs:     s.attrs(s.pod.HostIfName),
		PeerName:      s.pod.IfName,
		PeerNamespace: netlink.NsFd(s.pod.Namespace.FD()),
		PeerTxQLen:    -1,
	}
	// By default the kernel creates a queue for each CPU and uses one (veth_newlink, drivers/net/veth.c).
	link.NumTxQueues, link.NumRxQueues = 1, 1
	if link.HardwareAddr, err = newMAC(); err != nil {
		return linkEnds{}, err
	}
	if link.PeerHardwareAddr, err = s.pod.mac(); err != nil {
		return linkEnds{}, err
	}
	return s.addPair(link)
}

// netkitMode is a mode of netkit devices. The host's is the primary one of a pair, through which alone the kernel
// configures the pair.
type netkitMode netlink.NetkitMode

func (n netkitMode) linkType() linkType {
	try := func(h nsHandle) error {
		link := &netlink.Netkit{LinkAttrs: newAttrs(probeName), Mode: netlink.NetkitMode(n)}
		peer := newAttrs("probe1")
		link.SetPeerAttrs(&peer)
		return h.LinkAdd(link)
	}
	return linkType{
		kind: "netkit", delivery: DeliverFromPeer, add: n.add, check: n.check,
		requirement: requirement{feature: "netkit devices", module: "netkit", since: "6.7", try: try},
	}
}

func (n netkitMode) add(s session) (_ linkEnds, err error) {
	link := &netlink.Netkit{
		LinkAttrs: s.attrs(s.pod.HostIfName),
		Mode:      netlink.NetkitMode(n),
		Scrub:     netlink.NETKIT_SCRUB_DEFAULT,
		PeerScrub: netlink.NETKIT_SCRUB_DEFAULT,
		// Without a program, packets pass. The library's constants for that are 0.
		Policy:     netlink.NETKIT_POLICY_FORWARD,
		PeerPolicy: netlink.NETKIT_POLICY_FORWARD,
	}
	peer := s.attrs(s.pod.IfName)
	peer.Namespace = netlink.NsFd(s.pod.Namespace.FD())
	if link.Mode == netlink.NETKIT_MODE_L2 { // layer 3 lacks MAC addresses
		if link.HardwareAddr, err = newMAC(); err != nil {
			return linkEnds{}, err
		}
		if peer.HardwareAddr, err = s.pod.mac(); err != nil {
			return linkEnds{}, err
		}
	}
	link.SetPeerAttrs(&peer)
	return s.addPair(link)
}

func (n netkitMode) check(c *checker, s session, ends linkEnds) {
	checkPair(c, s, ends)
	primary, ok := ends.host.(*netlink.Netkit)
	if !ok {
		return
	}
	name, host := primary.Name, s.host.ns.Name()
	layers := map[netlink.NetkitMode]string{netlink.NETKIT_MODE_L2: "layer 2", netlink.NETKIT_MODE_L3: "layer 3"}
	if want := netlink.NetkitMode(n); primary.Mode != want {
		c.add("device %q in %q is in %s mode, not %s", name, host, layers[primary.Mode], layers[want])
	}
	if !primary.IsPrimary() {
		c.add("device %q in %q is not the primary one of its pair", name, host)
	}
	if primary.Policy != netlink.NETKIT_POLICY_FORWARD {
		c.add("device %q in %q drops packets without a program's verdict", name, host)
	}
	if primary.PeerPolicy != netlink.NETKIT_POLICY_FORWARD {
		c.add("the peer of device %q in %q drops packets without a program's verdict", name, host)
	}
}

// tuntapMode is TUN or TAP. Links are two persistent devices that a relay connects. Each takes one program (no
// IFF_MULTI_QUEUE), which decides whether packets have a virtio header.
type tuntapMode netlink.TuntapMode

const (
	tunLayer = tuntapMode(netlink.TUNTAP_MODE_TUN)
	tapLayer = tuntapMode(netlink.TUNTAP_MODE_TAP)
)

func (t tuntapMode) linkType() linkType {
	try := func(h nsHandle) error {
		err := t.create(h, probeName)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO) {
			return errors.Join(unix.EOPNOTSUPP, err) // without the module
		}
		return err
	}
	return linkType{
		kind: "tun", relayed: true, delivery: DeliverToHostDevice, add: t.add,
		requirement: requirement{feature: "TUN/TAP devices", module: "tun", since: "2.4.0", try: try},
	}
}

func (t tuntapMode) add(s session) (out linkEnds, err error) {
	if err := s.checkNamesFree(); err != nil {
		return out, err
	}
	mac, err := newMAC()
	if err != nil {
		return out, err
	}
	if out.host, err = t.addEnd(s.host, s.pod.HostIfName, s.mtu(), mac); err != nil || s.inside.ns == nil {
		return out, err
	}
	if mac = s.pod.MAC; mac == nil {
		mac = macOfAddress(s.pod.Addresses[0])
	}
	out.pod, err = t.addEnd(s.inside, s.pod.IfName, s.mtu(), mac)
	return out, err
}

func (t tuntapMode) addEnd(h nsHandle, name string, mtu int, mac net.HardwareAddr) (netlink.Link, error) {
	if err := t.create(h, name); err != nil {
		return nil, addError(err, name, t.String(), h.ns)
	}
	h.undo.add(func() error { return h.remove(name, "tun") })
	link, err := h.link(name)
	if err != nil {
		return nil, err
	}
	if err := h.setMTU(link, mtu); err != nil || t == tunLayer { // TUN devices lack a MAC address
		return link, err
	}
	if err := h.setMAC(link, mac); err != nil {
		return nil, err
	}
	return h.link(name)
}

// create creates a persistent device. The kernel creates it in the namespace in which the file is opened.
func (t tuntapMode) create(h nsHandle, name string) error {
	request, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	request.SetUint16(uint16(t) | unix.IFF_NO_PI | unix.IFF_TUN_EXCL)
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
func (t tuntapMode) String() string {
	if t == tapLayer {
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
