// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/service"
)

// checkUnheard returns an error if a process of the host has a socket that takes what comes to one of the services, all of one host port: a TCP
// socket that listens, or a UDP socket without a peer. At [::] it counts for both families.
func checkUnheard(host *netns.Namespace, services []service.Service) error {
	port, protocol := services[0].Frontend.Port(), services[0].Protocol
	for family, size := range map[uint8]int{unix.AF_INET: 4, unix.AF_INET6: 16} {
		var sockets [][]byte
		err := host.Do(func() (err error) {
			sockets, err = listSockets(family, protocol, port)
			return err
		})
		if err != nil && !errors.Is(err, unix.ENOENT) { // a kernel without CONFIG_INET_DIAG knows none
			return fmt.Errorf("host port %d: list sockets in %q: %w", port, host.Name(), err)
		}
		for _, socket := range sockets {
			at := addrOf(socket[8 : 8+size]) // id.idiag_src of struct inet_diag_msg
			for _, s := range services {
				addr := s.Frontend.Addr()
				if at == addr || at.IsUnspecified() && (at.Is6() || addr.Is4()) {
					return fmt.Errorf("host port %s is in use by a process of the host, at %s", s, netip.AddrPortFrom(at, port))
				}
			}
		}
	}
	return nil
}

// listSockets returns a struct inet_diag_msg (linux/inet_diag.h) for each such socket in the thread's network namespace.
func listSockets(family uint8, protocol service.Protocol, port uint16) ([][]byte, error) {
	state := 10 // TCP_LISTEN
	if protocol == service.UDP {
		state = 7 // TCP_CLOSE
	}
	query := make([]byte, 56) // struct inet_diag_req_v2
	query[0], query[1] = family, uint8(protocol)
	binary.NativeEndian.PutUint32(query[4:], 1<<state)
	binary.BigEndian.PutUint16(query[8:], port)
	request := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
	request.AddRawData(query)
	return request.Execute(unix.NETLINK_SOCK_DIAG, nl.SOCK_DIAG_BY_FAMILY)
}
