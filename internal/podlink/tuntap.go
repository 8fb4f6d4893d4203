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

// newTap is the mode that switches between TAP devices, whose other ends are
// programs.
func newTap() Mode { return bridged{name: "tap", wiring: tuntapEnds{mode: netlink.TUNTAP_MODE_TAP}} }

// newTun is the mode that routes between TUN devices.
func newTun() Mode {
	return routed{name: "tun", wiring: tuntapEnds{mode: netlink.TUNTAP_MODE_TUN}, layer3: true}
}

// tuntapEnds makes the ends of a link as persistent TUN or TAP devices, which a
// program joins. They take one program each (no IFF_MULTI_QUEUE), which chooses
// whether packets have a virtio header.
type tuntapEnds struct{ mode netlink.TuntapMode }

func (tuntapEnds) kind() string { return "tun" }

func (tuntapEnds) needs() Need { return NeedsRelay }

func (t tuntapEnds) requires() requirement {
	return requirement{
		feature: "TUN/TAP devices", module: "tun", since: "2.4.0",
		try: func(s side) error {
			err := t.make(s, probeName)
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO) {
				return errors.Join(unix.EOPNOTSUPP, err) // the kernel's answer where there is no module
			}
			return err
		},
	}
}

func (t tuntapEnds) add(host, inside side, network Network, pod Pod) (out pair, err error) {
	if err := freeNames(host, inside, pod); err != nil {
		return pair{}, err
	}
	mac, err := newMAC()
	if err != nil {
		return pair{}, err
	}
	if out.host, err = t.end(host, pod.HostIfName, network.mtu(), mac); err != nil || inside.ns == nil {
		return out, err
	}
	mac = pod.MAC
	if mac == nil {
		mac = macOfAddress(pod.Addresses[0])
	}
	out.pod, err = t.end(inside, pod.IfName, network.mtu(), mac)
	if err != nil {
		return pair{}, errors.Join(err, host.remove(pod.HostIfName, t.kind()))
	}
	return out, nil
}

// end creates one end of a link. If it fails there is none.
func (t tuntapEnds) end(s side, name string, mtu int, mac net.HardwareAddr) (_ netlink.Link, err error) {
	if err := t.make(s, name); err != nil {
		return nil, describeAdd(err, name, t.String(), s.ns)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.remove(name, t.kind()))
		}
	}()
	link, err := s.link(name)
	if err != nil {
		return nil, err
	}
	if err := s.LinkSetMTU(link, mtu); err != nil {
		return nil, fmt.Errorf("set MTU of device %q in %q to %d: %w", name, s.ns.Name(), mtu, err)
	}
	if t.mode != netlink.TUNTAP_MODE_TAP { // TUN devices have none
		return link, nil
	}
	if err := s.LinkSetHardwareAddr(link, mac); err != nil {
		return nil, fmt.Errorf("set MAC address of device %q in %q: %w", name, s.ns.Name(), err)
	}
	return s.link(name)
}

// make creates a persistent device. It is the namespace in which the file is
// opened that the device is created in.
func (t tuntapEnds) make(s side, name string) error {
	request, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	request.SetUint16(uint16(t.mode) | unix.IFF_NO_PI | unix.IFF_TUN_EXCL)
	return s.ns.Do(func() error {
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

// String is what users call the kind of device.
func (t tuntapEnds) String() string { return tuntapName(t.mode) }

func tuntapName(mode netlink.TuntapMode) string {
	if mode == netlink.TUNTAP_MODE_TAP {
		return "TAP"
	}
	return "TUN"
}

// macOfAddress is a MAC address that always is the same for an IP address. A new
// pod at an earlier one's address is thus where its neighbours believe it is,
// though a device without a carrier cannot tell them.
func macOfAddress(addr netip.Addr) net.HardwareAddr {
	sum := sha256.Sum256(addr.AsSlice())
	sum[0] = sum[0]&^1 | 2
	return sum[:6]
}

func (t tuntapEnds) check(c *checker, host, inside side, ends pair) {
	t.checkEnd(c, host, ends.host)
	t.checkEnd(c, inside, ends.pod)
}

func (t tuntapEnds) checkEnd(c *checker, s side, link netlink.Link) {
	device, ok := link.(*netlink.Tuntap)
	if c.err != nil || !ok {
		return
	}
	if device.Mode != t.mode {
		c.add("device %q in %q is a %s device, not %s", device.Name, s.ns.Name(), tuntapName(device.Mode), t)
	}
	if device.NonPersist {
		c.add("device %q in %q is not persistent", device.Name, s.ns.Name())
	}
}
