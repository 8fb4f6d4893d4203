// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// SetCongestion makes a TCP congestion control the default of the namespace's connections along the routes that it has
// now, but IPv6 ones to itself, which the kernel does not change. A namespace's sysctl takes only those that the machine
// allows to all users; a route takes any. Programs can still choose another one. The error matches errors.ErrUnsupported if
// the kernel lacks it.
func (c Conn) SetCongestion(name string) error {
	if err := tryCongestion(name); err != nil {
		return fmt.Errorf("congestion control %s: %w", name, err)
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := dump(c, "routes", allRoutes(family))
		if err != nil {
			return err
		}
		for _, route := range routes {
			local := route.Type == unix.RTN_LOCAL && family == netlink.FAMILY_V4
			if route.Type != unix.RTN_UNICAST && !local || route.Congctl == name {
				continue
			}
			route.Congctl = name
			route.Flags &^= unix.RTNH_F_DEAD | unix.RTNH_F_LINKDOWN // which the kernel tells, and takes from nobody
			if err := c.with(func(h *netlink.Handle) error { return h.RouteChange(&route) }); err != nil {
				return fmt.Errorf("set congestion control %s of route %v in network namespace %q: %w", name, route, c.ns.Name(), err)
			}
		}
	}
	return nil
}

// tryCongestion has a socket use a congestion control. The answer to a route says less.
func tryCongestion(name string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return AsUnsupported(unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, name))
}
