// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	// VXLANDevice is the bridge's port to the other host: a device of the kernel, or a
	// port of Open vSwitch.
	VXLANDevice = "mst-vxlan"
	// OVSVXLANDevice is what the kernel's datapath of Open vSwitch makes for all such
	// ports.
	OVSVXLANDevice = "vxlan_sys_4789"
	// VXLANPort is the UDP port that IANA assigned to VXLAN (RFC 7348).
	VXLANPort = 4789
	// VXLANOverhead is how many bytes VXLAN adds to a packet over IPv4: an Ethernet
	// header inside, and those of VXLAN, UDP and IPv4.
	VXLANOverhead = 14 + 8 + 8 + 20
	// maxVXLAN is the highest id.
	maxVXLAN = 1<<24 - 1
)

// VXLAN is a tunnel between the bridges of two hosts. Where to send is fixed: it
// neither learns nor uses multicast, and what has no entry, broadcasts included,
// goes to the other host.
type VXLAN struct {
	// ID is the network's identifier, up to 1<<24-1.
	ID int
	// Local and Remote are the addresses of this host and of the other one, of one
	// family.
	Local, Remote netip.Addr
}

// on reports whether there is a tunnel.
func (v VXLAN) on() bool { return v != VXLAN{} }

func (v VXLAN) validate() error {
	switch {
	case !v.on():
		return nil
	case v.ID < 1 || v.ID > maxVXLAN:
		return fmt.Errorf("VXLAN id %d is not between 1 and %d", v.ID, maxVXLAN)
	case !isHostAddress(v.Local) || !isHostAddress(v.Remote) || v.Local.Is4() != v.Remote.Is4() || v.Local == v.Remote:
		return fmt.Errorf("VXLAN from %v to %v: want two addresses of hosts, of one family", v.Local, v.Remote)
	}
	return nil
}

// joinVXLAN makes a VXLAN device a port of the bridge, newly created if need be.
// If it fails there is no new one.
func (s side) joinVXLAN(master netlink.Link, network Network) (created bool, err error) {
	link, err := s.link(VXLANDevice)
	if errors.Is(err, fs.ErrNotExist) {
		link, err = s.addVXLAN(network)
		if created = err == nil; errors.Is(err, unix.EEXIST) { // another Setup was quicker
			link, err = s.link(VXLANDevice)
		}
	}
	if err != nil {
		return false, err
	}
	defer func() {
		if err != nil && created {
			err = errors.Join(err, s.remove(VXLANDevice, "vxlan"))
		}
	}()
	if says := network.VXLAN.deviation(link); says != "" {
		return false, fmt.Errorf("device %q in %q %s: %w", VXLANDevice, s.ns.Name(), says, fs.ErrExist)
	}
	if err = s.LinkSetMTU(link, network.mtu()); err != nil {
		return created, fmt.Errorf("set MTU of device %q in %q to %d: %w", VXLANDevice, s.ns.Name(), network.mtu(), err)
	}
	if err = s.enslave(link, master); err != nil {
		return created, err
	}
	err = s.ready(link)
	return created, err
}

// addVXLAN creates the device. Its remote address is the entry for what has none.
func (s side) addVXLAN(network Network) (netlink.Link, error) {
	v := network.VXLAN
	device := &netlink.Vxlan{
		LinkAttrs: network.attrs(VXLANDevice), VxlanId: v.ID, SrcAddr: v.Local.AsSlice(), Group: v.Remote.AsSlice(),
		Port: VXLANPort, Learning: false,
	}
	var err error
	if device.HardwareAddr, err = newMAC(); err != nil {
		return nil, err
	}
	err = s.LinkAdd(device)
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = &UnsupportedError{Mode: "bridge", Feature: "VXLAN devices", Module: "vxlan", Since: "3.7", Kernel: kernelRelease(), Err: err}
	}
	if err != nil {
		return nil, describeAdd(err, VXLANDevice, "vxlan", s.ns)
	}
	return s.link(VXLANDevice)
}

// deviation says in what a device is not the tunnel's, or is empty.
func (v VXLAN) deviation(link netlink.Link) string {
	device, ok := link.(*netlink.Vxlan)
	switch {
	case !ok:
		return "is a " + kindOf(link) + ", not a vxlan"
	case device.VxlanId != v.ID:
		return fmt.Sprintf("has VXLAN id %d, not %d", device.VxlanId, v.ID)
	case device.Learning:
		return "learns where to send"
	}
	for _, end := range []struct {
		have net.IP
		want netip.Addr
	}{{device.SrcAddr, v.Local}, {device.Group, v.Remote}} {
		if have, _ := netip.AddrFromSlice(end.have); have.Unmap() != end.want {
			return fmt.Sprintf("has VXLAN end %v, not %v", have.Unmap(), end.want)
		}
	}
	return ""
}

// vxlan notes in what the device is not as addVXLAN leaves it.
func (c *checker) vxlan(host side, network Network) {
	if c.err != nil {
		return
	}
	link, err := host.link(VXLANDevice)
	if err != nil {
		return // trunks noted that
	}
	if says := network.VXLAN.deviation(link); says != "" {
		c.add("device %q in %q %s", VXLANDevice, host.ns.Name(), says)
	}
	if have, want := link.Attrs().MTU, network.mtu(); have != want {
		c.add("device %q in %q has MTU %d, not %d", VXLANDevice, host.ns.Name(), have, want)
	}
}

// AddRemote tells the VXLAN device of a bridge that is set up that a MAC address
// is on the other host. It is no error if it knows. A port of Open vSwitch needs
// no telling: all that it takes goes to the other host.
func AddRemote(network Network, mac net.HardwareAddr) (err error) {
	defer wrap(&err, "add remote pod")
	host, err := network.openHost()
	if err != nil {
		return err
	}
	defer host.Close()
	link, err := host.link(VXLANDevice)
	if err != nil {
		return err
	}
	err = host.NeighSet(&netlink.Neigh{
		LinkIndex: link.Attrs().Index, Family: unix.AF_BRIDGE, Flags: netlink.NTF_SELF,
		State: netlink.NUD_PERMANENT | netlink.NUD_NOARP, IP: network.VXLAN.Remote.AsSlice(), HardwareAddr: mac,
	})
	if err != nil {
		return fmt.Errorf("add forwarding entry of %v to device %q in %q: %w", mac, VXLANDevice, host.ns.Name(), err)
	}
	return nil
}
