// SPDX-License-Identifier: Apache-2.0

// Package rtnl reads and changes the devices, addresses, routes and sysctls of a network namespace over route netlink.
//
// An interrupted dump is repeated. Errors name the device and the namespace.
package rtnl

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"mustang/internal/netns"
)

// dumpAttempts is how often an interrupted dump is repeated.
const dumpAttempts = 50

// Handle opens a route netlink handle in the namespace. The caller closes it. It stays in the namespace whichever
// thread uses it, and serves one goroutine.
func (c Conn) Handle() (*netlink.Handle, error) {
	return c.FamilyHandle(unix.NETLINK_ROUTE)
}

// FamilyHandle opens a handle of another netlink family, such as NETLINK_NETFILTER.
func (c Conn) FamilyHandle(family int) (handle *netlink.Handle, err error) {
	err = c.ns.Do(func() error {
		handle, err = netlink.NewHandle(family)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open netlink socket in network namespace %q: %w", c.ns.Name(), err)
	}
	return handle, nil
}

// Dump repeats list until the result is complete. The kernel marks a dump that changed meanwhile, and signals interrupt
// one.
func Dump[T any](list func() ([]T, error)) ([]T, error) {
	var err error
	for range dumpAttempts {
		var all []T
		all, err = list()
		if err == nil {
			return all, nil
		}
		if !errors.Is(err, netlink.ErrDumpInterrupted) && !errors.Is(err, unix.EINTR) {
			return nil, err
		}
	}
	return nil, fmt.Errorf("dump interrupted %d times: %w", dumpAttempts, err)
}

// Conn reads and changes the devices, addresses, routes and sysctls of one network namespace. Its methods may be called
// by several goroutines at once.
type Conn struct{ ns *netns.Namespace }

// In returns a Conn for a namespace. It opens nothing, and needs no Close: each method opens a route netlink socket in
// the namespace and closes it.
func In(ns *netns.Namespace) Conn { return Conn{ns} }
