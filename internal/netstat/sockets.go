// SPDX-License-Identifier: Apache-2.0

package netstat

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"mustang/internal/netns"
)

// Receiver is a socket that receives whatever comes to its port.
type Receiver struct {
	Addr netip.Addr
	// Only6 is set for a socket with IPV6_V6ONLY: without it a socket at [::] receives IPv4 too.
	Only6 bool
}

// Receivers returns the sockets of n that receive whatever comes to a port: TCP sockets that listen, or UDP sockets
// without a peer. proto is 6 (TCP) or 17 (UDP). A kernel without CONFIG_INET_DIAG names none.
func Receivers(n *netns.Namespace, proto uint8, port uint16) (all []Receiver, err error) {
	state := 10 // TCP_LISTEN
	if proto == unix.IPPROTO_UDP {
		state = 7 // TCP_CLOSE
	}
	for family, size := range map[uint8]int{unix.AF_INET: 4, unix.AF_INET6: 16} {
		query := make([]byte, 56) // struct inet_diag_req_v2 (linux/inet_diag.h)
		query[0], query[1] = family, proto
		binary.NativeEndian.PutUint32(query[4:], 1<<state)
		binary.BigEndian.PutUint16(query[8:], port)
		var sockets [][]byte
		err := n.Do(func() (err error) {
			request := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
			request.AddRawData(query)
			sockets, err = request.Execute(unix.NETLINK_SOCK_DIAG, nl.SOCK_DIAG_BY_FAMILY)
			return err
		})
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return nil, fmt.Errorf("list sockets in %q: %w", n.Name(), err)
		}
		for _, socket := range sockets {
			if addr, ok := netip.AddrFromSlice(socket[8 : 8+size]); ok { // id.idiag_src of struct inet_diag_msg
				all = append(all, Receiver{addr.Unmap(), isOnly6(socket)})
			}
		}
	}
	return all, nil
}

// isOnly6 reports whether a message has INET_DIAG_SKV6ONLY set, which follows its struct inet_diag_msg.
func isOnly6(message []byte) bool {
	const header, only6 = 72, 11
	attributes, err := nl.ParseRouteAttr(message[header:])
	return err == nil && slices.ContainsFunc(attributes, func(a syscall.NetlinkRouteAttr) bool {
		return a.Attr.Type == only6 && a.Value[0] != 0
	})
}
