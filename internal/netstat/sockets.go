// SPDX-License-Identifier: Apache-2.0

package netstat

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"mustang/internal/netns"
)

// Receivers returns the local addresses of the sockets of n that receive whatever comes to a port: TCP sockets that listen, or UDP sockets without a peer.
// proto is 6 (TCP) or 17 (UDP). A kernel without CONFIG_INET_DIAG names none.
func Receivers(n *netns.Namespace, proto uint8, port uint16) (all []netip.Addr, err error) {
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
				all = append(all, addr.Unmap())
			}
		}
	}
	return all, nil
}
