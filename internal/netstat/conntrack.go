// SPDX-License-Identifier: Apache-2.0

// Package netstat reads the counters and the connection table of a network namespace.
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

// Flows lists the connections that the kernel tracks in n, of both families. It returns none if the kernel does not
// track connections.
func Flows(n *netns.Namespace) ([]Flow, error) {
	handle, err := rtnl.In(n).FamilyHandle(unix.NETLINK_NETFILTER)
	if noConntrack(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer handle.Close()
	var flows []Flow
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		entries, err := rtnl.Dump(func() ([]*netlink.ConntrackFlow, error) {
			return handle.ConntrackTableList(netlink.ConntrackTable, family)
		})
		if noConntrack(err) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("list connections in network namespace %q: %w", n.Name(), err)
		}
		for _, entry := range entries {
			flows = append(flows, Flow{
				Proto: entry.Forward.Protocol,
				Orig:  tuple(entry.Forward),
				Reply: tuple(entry.Reverse),
			})
		}
	}
	return flows, nil
}

// noConntrack reports whether err means that the kernel lacks nfnetlink (EPROTONOSUPPORT on the socket) or conntrack
// (EINVAL for a missing subsystem, EOPNOTSUPP for a missing call).
func noConntrack(err error) bool {
	return errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP)
}

func tuple(t netlink.IPTuple) Tuple {
	return Tuple{Src: addrPort(t.SrcIP, t.SrcPort), Dst: addrPort(t.DstIP, t.DstPort)}
}

func addrPort(ip net.IP, port uint16) netip.AddrPort {
	addr, _ := netip.AddrFromSlice(ip)
	return netip.AddrPortFrom(addr.Unmap(), port)
}
