// SPDX-License-Identifier: Apache-2.0

package nodenet

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"mustang/internal/rtnl"
)

// DeviceName is the name of a node's VXLAN device.
const DeviceName = "mst-vxlan"

// networkID separates our packets from other VXLAN networks on the same port, and our device from a foreign one of that
// name. It is the letters mst.
const networkID = 0x6d7374

// device is our VXLAN or WireGuard device; index 0: there is none.
type device struct {
	index int
	link  netlink.Link
}

func (h host) device() (device, error) {
	link, err := h.LinkByName(DeviceName)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return device{}, nil
	}
	if err != nil {
		return device{}, fmt.Errorf("device %q: %w", DeviceName, err)
	}
	if v, ok := link.(*netlink.Vxlan); !ok || v.VxlanId != networkID {
		return device{}, nil
	}
	return device{link.Attrs().Index, link}, nil
}

func (h host) deleteDevice(d device) error {
	if err := rtnl.DeleteLink(h.Handle, d.index); err != nil {
		return fmt.Errorf("delete device %q: %w", d.link.Attrs().Name, err)
	}
	return nil
}

// setUpDevice sets up the VXLAN device as planned. If a property cannot be changed, it creates the device again.
func (h host) setUpDevice(want plan, port uint16) error {
	have, err := h.device()
	if err != nil {
		return err
	}
	if have.index != 0 && !sameDevice(have.link, want, port) {
		if err := h.deleteDevice(have); err != nil {
			return err
		}
		have = device{}
	}
	if have.index == 0 {
		if have, err = h.addDevice(want, port); err != nil {
			return err
		}
	}
	fail := func(what string, err error) error { return fmt.Errorf("%s of device %q: %w", what, DeviceName, err) }
	if attrs := have.link.Attrs(); attrs.MTU != want.mtu {
		if err := h.LinkSetMTU(have.link, want.mtu); err != nil {
			return fail(fmt.Sprintf("set MTU %d", want.mtu), err)
		}
	}
	if have.link.Attrs().Flags&net.FlagUp == 0 {
		// Without a link-local address, peers learn no neighbours there. A kernel without IPv6 lacks this setting.
		if err := h.SetSysctl("net/ipv6/conf/"+DeviceName+"/addr_gen_mode", "1"); err != nil &&
			!errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := h.LinkSetUp(have.link); err != nil {
			return fail("set state", err)
		}
	}
	return h.setAddresses(have.link, want.addresses)
}

func sameDevice(link netlink.Link, want plan, port uint16) bool {
	v, ok := link.(*netlink.Vxlan)
	if !ok {
		return false
	}
	local, _ := netip.AddrFromSlice(v.SrcAddr)
	return v.Port == int(port) && !v.Learning && v.UDP6ZeroCSumRx == want.local.Is6() && local.Unmap() == want.local &&
		bytes.Equal(v.HardwareAddr, want.mac)
}

func (h host) addDevice(want plan, port uint16) (device, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr, attrs.MTU = DeviceName, want.mac, want.mtu
	err := h.LinkAdd(newVXLAN(attrs, networkID, want.local, port))
	if errors.Is(err, unix.EEXIST) {
		err = fmt.Errorf("one of that name, or with VXLAN id %d on port %d, exists and is not the agent's", networkID, port)
	}
	if err != nil {
		return device{}, fmt.Errorf("add VXLAN device %q: %w", DeviceName, err)
	}
	return h.device()
}

// newVXLAN describes a VXLAN device. Programs send no UDP checksum, over IPv6 either (RFC 6935): the device has to take
// such packets.
func newVXLAN(attrs netlink.LinkAttrs, id int, local netip.Addr, port uint16) *netlink.Vxlan {
	return &netlink.Vxlan{LinkAttrs: attrs, VxlanId: id, SrcAddr: local.AsSlice(), Port: int(port),
		UDP6ZeroCSumRx: local.Is6()}
}

func (h host) setAddresses(link netlink.Link, want []netip.Addr) error {
	have, err := rtnl.Dump(func() ([]netlink.Addr, error) { return h.AddrList(link, unix.AF_UNSPEC) })
	if err != nil {
		return fmt.Errorf("list addresses of device %q: %w", link.Attrs().Name, err)
	}
	var there []netip.Prefix
	for _, a := range have {
		p := rtnl.Prefix(a.IPNet)
		if there = append(there, p); p.IsSingleIP() && slices.Contains(want, p.Addr()) {
			continue
		}
		if err := h.AddrDel(link, &a); err != nil {
			return fmt.Errorf("delete address %v of device %q: %w", p, link.Attrs().Name, err)
		}
	}
	for _, a := range want {
		p := netip.PrefixFrom(a, a.BitLen())
		if slices.Contains(there, p) {
			continue
		}
		if err := h.AddrReplace(link, rtnl.DeviceAddress(p)); err != nil {
			return fmt.Errorf("add address %v to device %q: %w", p, link.Attrs().Name, err)
		}
	}
	return nil
}

func (h host) setPeers(index int, peers []peer) error {
	have, err := h.neighbours(index)
	if err != nil {
		return err
	}
	want, wanted := neighboursOf(index, peers), map[neighbour]bool{}
	for _, n := range want {
		wanted[neighbourOf(n)] = true
	}
	var errs []error
	change := func(n netlink.Neigh, what string, do func(*netlink.Neigh) error) {
		if err := do(&n); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("%s neighbour %v at %v of device %q: %w", what, n.IP, n.HardwareAddr, DeviceName,
				err))
		}
	}
	for at, n := range have {
		if !wanted[at] {
			change(n, "delete", h.NeighDel)
		}
	}
	for _, n := range want {
		if _, there := have[neighbourOf(n)]; !there {
			change(n, "add", h.NeighSet)
		}
	}
	return errors.Join(errs...)
}

// neighboursOf returns the forwarding entries and the neighbours that the VXLAN device needs for some nodes.
func neighboursOf(index int, peers []peer) (want []netlink.Neigh) {
	for _, p := range peers {
		want = append(want, netlink.Neigh{
			LinkIndex: index, Family: unix.AF_BRIDGE, State: netlink.NUD_PERMANENT | netlink.NUD_NOARP, Flags: netlink.NTF_SELF,
			IP: p.underlay.AsSlice(), HardwareAddr: p.mac,
		})
		for _, hop := range p.hops {
			want = append(want, netlink.Neigh{LinkIndex: index, Family: nl.GetIPFamily(hop.AsSlice()),
				State: netlink.NUD_PERMANENT, IP: hop.AsSlice(), HardwareAddr: p.mac})
		}
	}
	return want
}

func (h host) neighbours(index int) (map[neighbour]netlink.Neigh, error) {
	have := map[neighbour]netlink.Neigh{}
	for _, family := range []int{unix.AF_BRIDGE, unix.AF_INET, unix.AF_INET6} {
		entries, err := rtnl.Dump(func() ([]netlink.Neigh, error) { return h.NeighList(index, family) })
		if err != nil {
			return nil, fmt.Errorf("list neighbours of device %q: %w", DeviceName, err)
		}
		for _, e := range entries {
			if e.State&netlink.NUD_PERMANENT != 0 {
				e.Family = family
				have[neighbourOf(e)] = e
			}
		}
	}
	return have, nil
}

// neighbour identifies an entry of a device.
type neighbour struct {
	family int
	ip     netip.Addr
	mac    string
}

func neighbourOf(n netlink.Neigh) neighbour {
	ip, _ := netip.AddrFromSlice(n.IP)
	return neighbour{n.Family, ip.Unmap(), string(n.HardwareAddr)}
}
