// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"mustang/internal/nl"
)

const (
	// kernelTimeout is how long a device or an address may take to be usable. It is the
	// time of a kernel work item, well under a millisecond on an idle machine.
	kernelTimeout = 5 * time.Second
	// firstPoll is the first pause between two looks; each is half as long again as
	// the one before, up to lastPoll.
	firstPoll = 20 * time.Microsecond
	lastPoll  = 2 * time.Millisecond
)

// side is a namespace that is being worked on, with a netlink socket in it.
type side struct {
	ns *nl.Namespace
	*netlink.Handle
}

func openSide(ns *nl.Namespace) (side, error) {
	handle, err := ns.Netlink()
	if err != nil {
		return side{}, err
	}
	return side{ns: ns, Handle: handle}, nil
}

// openHost opens the side of a network's host, if it has one.
func (n Network) openHost() (side, error) {
	if err := n.validateHost(); err != nil {
		return side{}, err
	}
	return openSide(n.Host)
}

// openInside opens the side of a pod that has a namespace, to look for its device.
func (p Pod) openInside() (side, error) {
	if err := p.validateIfName(); err != nil {
		return side{}, err
	}
	return openSide(p.Namespace)
}

// openSides opens the host's and the pod's side; closeBoth closes them. The
// pod's has no namespace if the pod has none.
func openSides(network Network, pod Pod) (host, inside side, closeBoth func(), err error) {
	if host, err = openSide(network.Host); err != nil {
		return side{}, side{}, nil, err
	}
	if pod.Namespace == nil {
		return host, side{}, host.Close, nil
	}
	if inside, err = openSide(pod.Namespace); err != nil {
		host.Close()
		return side{}, side{}, nil, err
	}
	return host, inside, func() { host.Close(); inside.Close() }, nil
}

// link returns the device of that name; the error matches fs.ErrNotExist if
// there is none.
func (s side) link(name string) (netlink.Link, error) {
	link, err := s.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		err = fs.ErrNotExist
	}
	if err != nil {
		return nil, fmt.Errorf("device %q in %q: %w", name, s.ns.Name(), err)
	}
	return link, nil
}

// links returns all devices.
func (s side) links() ([]netlink.Link, error) {
	links, err := nl.Dump(s.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list devices in %q: %w", s.ns.Name(), err)
	}
	return links, nil
}

// mustBeFree is an error that matches fs.ErrExist if there is a device of that
// name.
func (s side) mustBeFree(name string) error {
	_, err := s.link(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return fmt.Errorf("device %q in %q: %w", name, s.ns.Name(), fs.ErrExist)
}

// remove deletes the device of that name, if there is one. If it is not of that
// kind it is someone else's, which is an error.
func (s side) remove(name, kind string) error {
	link, err := s.link(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if have := kindOf(link); have != kind {
		return fmt.Errorf("device %q in %q is not ours: it is a %s, not a %s", name, s.ns.Name(), have, kind)
	}
	if err := s.ns.DeleteLink(s.Handle, link.Attrs().Index); err != nil {
		return fmt.Errorf("delete device %q in %q: %w", name, s.ns.Name(), err)
	}
	return nil
}

// up sets the device up. It may not be able to send before awaitCarrier.
func (s side) up(link netlink.Link) error {
	if err := s.LinkSetUp(link); err != nil {
		return fmt.Errorf("set device %q in %q up: %w", link.Attrs().Name, s.ns.Name(), err)
	}
	return nil
}

// upIfDown sets a device up that was down when it was looked up: that takes the
// kernel's lock of all devices even where it changes nothing.
func (s side) upIfDown(link netlink.Link) error {
	if link.Attrs().RawFlags&unix.IFF_UP != 0 {
		return nil
	}
	return s.up(link)
}

// awaitCarrier returns when the device can send. The kernel drops what is sent
// from when a device gets its carrier until a work item has enabled its queues,
// which the operational state tells. Since Linux 6.8 reading the state runs that
// work item first. Devices of kind ipvlan never tell: their queues are enabled
// when they are set up.
func (s side) awaitCarrier(link netlink.Link) error {
	return await(func() error {
		now, err := s.LinkByIndex(link.Attrs().Index)
		if err != nil {
			return fmt.Errorf("read state of device %q in %q: %w", link.Attrs().Name, s.ns.Name(), err)
		}
		state := now.Attrs().OperState
		silent := kindOf(now) == "ipvlan" && state == netlink.OperUnknown && now.Attrs().RawFlags&unix.IFF_LOWER_UP != 0
		if state == netlink.OperUp || silent {
			return nil
		}
		return notYet(fmt.Sprintf("device %q in %q cannot send: its state is %v", link.Attrs().Name, s.ns.Name(), state))
	})
}

// awaitLocal returns when packets to the device's own IPv6 addresses are
// received. The kernel adds the routes for that in a work item, even without
// duplicate address detection.
func (s side) awaitLocal(link netlink.Link, addrs []netip.Prefix) error {
	for _, addr := range addrs {
		if addr.Addr().Is4() {
			continue
		}
		options := &netlink.RouteGetOptions{}
		if addr.Addr().IsLinkLocalUnicast() {
			options.OifIndex = link.Attrs().Index
		}
		err := await(func() error {
			routes, err := s.RouteGetWithOptions(addr.Addr().AsSlice(), options)
			if len(routes) == 1 && routes[0].Type == unix.RTN_LOCAL {
				return nil
			}
			return notYet(fmt.Sprintf("address %v of device %q in %q cannot receive: routes to it are %v, %v",
				addr.Addr(), link.Attrs().Name, s.ns.Name(), routes, err))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// notYet is an error that may pass.
type notYet string

func (n notYet) Error() string { return string(n) }

// await calls try until it returns nil or an error that will not pass.
func await(try func() error) error {
	pause := firstPoll
	for deadline := time.Now().Add(kernelTimeout); ; pause = min(pause*3/2, lastPoll) {
		err := try()
		if _, ok := err.(notYet); !ok || time.Now().After(deadline) {
			return err
		}
		time.Sleep(pause)
	}
}

// addAddress adds an address, usable at once. added is false if it was there.
func (s side) addAddress(link netlink.Link, addr netip.Prefix, scope netlink.Scope) (added bool, err error) {
	address := netlinkAddr(addr, scope)
	err = s.AddrAdd(link, address)
	if errors.Is(err, unix.EEXIST) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("add address %v to device %q in %q: %w", addr, link.Attrs().Name, s.ns.Name(), err)
	}
	return true, nil
}

// removeAddress removes an address, if it is there.
func (s side) removeAddress(link netlink.Link, addr netip.Prefix) error {
	err := s.AddrDel(link, netlinkAddr(addr, netlink.SCOPE_UNIVERSE))
	if err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
		return fmt.Errorf("remove address %v from device %q in %q: %w", addr, link.Attrs().Name, s.ns.Name(), err)
	}
	return nil
}

func netlinkAddr(addr netip.Prefix, scope netlink.Scope) *netlink.Addr {
	address := &netlink.Addr{IPNet: ipNet(addr), Scope: int(scope)}
	if addr.Addr().Is6() {
		address.Flags = unix.IFA_F_NODAD
	}
	return address
}

// ipNet keeps the address of a prefix, not only its network.
func ipNet(prefix netip.Prefix) *net.IPNet {
	addr := prefix.Addr()
	return &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(prefix.Bits(), addr.BitLen())}
}

// kindOf is what the kernel calls that kind of device.
func kindOf(link netlink.Link) string {
	if _, ok := link.(*netlink.Tuntap); ok {
		return "tun" // the library calls it otherwise
	}
	return link.Type()
}

// wrap says what was tried, if err is an error.
func wrap(err *error, doing string) {
	if *err != nil {
		*err = fmt.Errorf("%s: %w", doing, *err)
	}
}
