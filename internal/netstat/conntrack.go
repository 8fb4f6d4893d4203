// SPDX-License-Identifier: Apache-2.0

// Package netstat reads the counters, the sockets and the connection table of a network namespace, and empties the table.
package netstat

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
)

// Tuple is one direction of a connection.
type Tuple struct{ Src, Dst netip.AddrPort }

// Flow is an entry of the kernel's connection table (conntrack). With address translation, Reply is not the reverse of
// Orig.
type Flow struct {
	Proto uint8 // IP protocol number: 6 is TCP, 17 is UDP
	Orig  Tuple // as the first packet came in
	Reply Tuple // as its replies are expected
}

// Lookup returns the connection that the kernel tracks in n by the addresses of its first packet; false if there is none,
// or the kernel does not track connections.
func Lookup(n *netns.Namespace, proto uint8, orig Tuple) (Flow, bool, error) {
	family := netlink.InetFamily(unix.AF_INET)
	if orig.Src.Addr().Is6() {
		family = unix.AF_INET6
	}
	var flows []*netlink.ConntrackFlow
	err := n.Do(func() (err error) {
		flows, err = rtnl.Dump(func() ([]*netlink.ConntrackFlow, error) {
			return netlink.ConntrackTableList(netlink.ConntrackTable, family)
		})
		return err
	})
	if err != nil && !noConntrack(err) {
		return Flow{}, false, fmt.Errorf("look up connection in network namespace %q: %w", n.Name(), err)
	}
	for _, f := range flows {
		if f.Forward.Protocol == proto && tupleOf(f.Forward) == orig {
			return Flow{Proto: proto, Orig: orig, Reply: tupleOf(f.Reverse)}, true, nil
		}
	}
	return Flow{}, false, nil
}

func tupleOf(t netlink.IPTuple) Tuple {
	end := func(ip net.IP, port uint16) netip.AddrPort {
		addr, _ := netip.AddrFromSlice(ip)
		return netip.AddrPortFrom(addr.Unmap(), port)
	}
	return Tuple{Src: end(t.SrcIP, t.SrcPort), Dst: end(t.DstIP, t.DstPort)}
}

// Flush deletes the connections that the kernel tracks in n. Where it does not track any, there is nothing to delete.
func Flush(n *netns.Namespace) error {
	err := n.Do(func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) })
	if err != nil && !noConntrack(err) {
		return fmt.Errorf("delete the tracked connections in network namespace %q: %w", n.Name(), err)
	}
	return nil
}

// noConntrack reports whether err means that the kernel lacks nfnetlink (EPROTONOSUPPORT on the socket) or conntrack
// (EINVAL for a missing subsystem, EOPNOTSUPP for a missing call).
func noConntrack(err error) bool {
	return errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP)
}
