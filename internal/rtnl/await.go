// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	// awaitTimeout is the time in which a device or an address becomes usable. It is the time of a kernel work item, well
	// under a millisecond on an idle machine.
	awaitTimeout = 30 * time.Second
	// firstPoll is the first interval of polls. Each is half as long again as the one before, up to lastPoll.
	firstPoll = 20 * time.Microsecond
	lastPoll  = 2 * time.Millisecond
)

// AwaitCarrier returns when a device of the handle's namespace can send. Between the carrier and the work item that
// enables the device's queues the kernel drops packets; the operational state changes with the latter. Since Linux 6.8
// a read of the state runs that work item first. Devices of kind ipvlan have no such state: their queues are enabled
// when they are set up.
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

// routesTo looks up the route to an address, through the device if the address is link-local.
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
