// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"mustang/internal/netns"
)

// DeviceConfig is the configuration that Configure applies.
type DeviceConfig struct {
	// Up sets the device up. False leaves its state alone.
	Up  bool
	MTU int // in bytes; 0 leaves it alone
	// Addresses are added to the device, unless it already has them. IPv6 addresses skip duplicate address detection and
	// are usable at once.
	Addresses []netip.Prefix
}

func (c DeviceConfig) check() error {
	if c.MTU < 0 {
		return fmt.Errorf("invalid MTU %d", c.MTU)
	}
	for _, address := range c.Addresses {
		if !address.IsValid() {
			return fmt.Errorf("invalid address %v with prefix length %d", address.Addr(), address.Bits())
		}
	}
	return nil
}

// Configure sets a device's MTU, then its state, then its addresses. The kernel adds the routes to the addresses'
// prefixes. If Up is set, the kernel accepts packets to the addresses when Configure returns. After an error the
// earlier steps stay.
func (c Conn) Configure(name string, config DeviceConfig) error {
	return c.OnDevice("configure ", name, func(handle *netlink.Handle, link netlink.Link) error {
		if err := config.check(); err != nil {
			return err
		}
		if config.MTU > 0 {
			if err := handle.LinkSetMTU(link, config.MTU); err != nil {
				return fmt.Errorf("set MTU to %d: %w", config.MTU, err)
			}
		}
		if config.Up {
			if err := handle.LinkSetUp(link); err != nil {
				return fmt.Errorf("set up: %w", err)
			}
		}
		for _, address := range config.Addresses {
			if err := handle.AddrReplace(link, DeviceAddress(address)); err != nil {
				return fmt.Errorf("add address %s: %w", address, err)
			}
		}
		for _, address := range config.Addresses {
			if !config.Up {
				break
			}
			if err := c.AwaitLocal(handle, link, address.Addr()); err != nil {
				return fmt.Errorf("add address %s: %w", address, err)
			}
		}
		return nil
	})
}

// SetUp sets a device up or down. A device that is down keeps its addresses and loses its routes.
func (c Conn) SetUp(name string, up bool) error {
	try, set := "set down ", (*netlink.Handle).LinkSetDown
	if up {
		try, set = "set up ", (*netlink.Handle).LinkSetUp
	}
	return c.OnDevice(try, name, set)
}

// DeviceAddress converts an address with its prefix length to the library's form. An IPv6 address skips duplicate
// address detection.
func DeviceAddress(address netip.Prefix) *netlink.Addr {
	ip := address.Addr()
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: ip.AsSlice(), Mask: net.CIDRMask(address.Bits(), ip.BitLen())}}
	if ip.Is6() {
		addr.Flags = unix.IFA_F_NODAD
	}
	return addr
}

// VethEnd is one end of a veth pair.
type VethEnd struct {
	Namespace *netns.Namespace
	Name      string
}

// AddVeth joins two namespaces by a veth pair and sets both ends up. It creates each end in its own namespace. The MTU
// is in bytes. After an error no device is left.
func AddVeth(a, b VethEnd, mtu int) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = a.Name, mtu
	pair := &netlink.Veth{LinkAttrs: attrs, PeerName: b.Name, PeerMTU: uint32(mtu),
		PeerNamespace: netlink.NsFd(b.Namespace.FD())}
	near, far := In(a.Namespace), In(b.Namespace)
	err := near.with(func(handle *netlink.Handle) error {
		if err := handle.LinkAdd(pair); err != nil {
			return err
		}
		err := errors.Join(near.SetUp(a.Name, true), far.SetUp(b.Name, true))
		if err != nil {
			_ = handle.LinkDel(pair)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("add veth pair %s in %q and %s in %q: %w", a.Name, a.Namespace.Name(), b.Name,
			b.Namespace.Name(), err)
	}
	return nil
}

const (
	// awaitTimeout is the time in which a device or an address becomes usable. It is the time of a kernel work item, well
	// under a millisecond on an idle machine.
	awaitTimeout = 30 * time.Second
	// firstPoll is the first interval of polls. Each is half as long again as the one before, up to lastPoll.
	firstPoll = 20 * time.Microsecond
	lastPoll  = 2 * time.Millisecond
)

// AwaitCarrier returns when a device of the handle's namespace can send. The kernel gives a device its carrier, and
// enables its queues in a later work item; between the two it drops packets. The operational state changes with the
// work item. Since Linux 6.8 a read of the state runs that work item first. Devices of kind ipvlan lack such a state:
// their queues are enabled when they are set up.
func (c Conn) AwaitCarrier(handle *netlink.Handle, link netlink.Link) error {
	return poll(func() error {
		now, err := handle.LinkByIndex(link.Attrs().Index)
		if err != nil {
			return fmt.Errorf("read state of device %q in %q: %w", link.Attrs().Name, c.ns.Name(), err)
		}
		state := now.Attrs().OperState
		stateless := now.Type() == "ipvlan" && state == netlink.OperUnknown && now.Attrs().RawFlags&unix.IFF_LOWER_UP != 0
		if state == netlink.OperUp || stateless {
			return nil
		}
		return retryError(fmt.Sprintf("device %q in %q cannot send: its state is %v", link.Attrs().Name, c.ns.Name(), state))
	})
}

// AwaitLocal returns when the kernel receives packets to an address of a device of the handle's namespace. It adds the
// routes for IPv6 addresses in a work item, even without duplicate address detection.
func (c Conn) AwaitLocal(handle *netlink.Handle, link netlink.Link, addr netip.Addr) error {
	return poll(func() error {
		routes, err := routesTo(handle, link, addr)
		if isLocal(routes, err) {
			return nil
		}
		return retryError(fmt.Sprintf("address %v of device %q in %q cannot receive: its routes are %v, %v",
			addr, link.Attrs().Name, c.ns.Name(), routes, err))
	})
}

// HasLocal reports whether an address is one of the handle's namespace, and of the device if it is link-local.
func HasLocal(handle *netlink.Handle, link netlink.Link, addr netip.Addr) bool {
	return isLocal(routesTo(handle, link, addr))
}

func routesTo(handle *netlink.Handle, link netlink.Link, addr netip.Addr) ([]netlink.Route, error) {
	options := &netlink.RouteGetOptions{}
	if addr.IsLinkLocalUnicast() {
		options.OifIndex = link.Attrs().Index
	}
	return handle.RouteGetWithOptions(addr.AsSlice(), options)
}

func isLocal(routes []netlink.Route, err error) bool {
	return err == nil && len(routes) == 1 && routes[0].Type == unix.RTN_LOCAL
}

// retryError is an error after which a poll is repeated.
type retryError string

func (e retryError) Error() string { return string(e) }

// poll calls try until it returns nil or an error other than retryError, or until awaitTimeout.
func poll(try func() error) error {
	pause := firstPoll
	for deadline := time.Now().Add(awaitTimeout); ; pause = min(pause*3/2, lastPoll) {
		err := try()
		if retry := retryError(""); !errors.As(err, &retry) || time.Now().After(deadline) {
			return err
		}
		time.Sleep(pause)
	}
}
