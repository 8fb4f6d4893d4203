// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"fmt"
	"net/netip"

	"mustang/internal/netns"
	"mustang/internal/netstat"
	"mustang/internal/service"
)

// checkUnheard returns an error if a process of the host listens at the host port that the services share (TCP), or has an unconnected UDP socket
// there. A socket at [::] counts for both families, unless it has IPV6_V6ONLY.
func checkUnheard(host *netns.Namespace, services []service.Service) error {
	port := services[0].Frontend.Port()
	sockets, err := netstat.Receivers(host, uint8(services[0].Protocol), port)
	if err != nil {
		return fmt.Errorf("host port %d: %w", port, err)
	}
	for _, socket := range sockets {
		at := socket.Addr
		for _, s := range services {
			addr := s.Frontend.Addr()
			if at == addr || at.IsUnspecified() && (at.Is6() && !socket.Only6 || at.Is4() == addr.Is4()) {
				return fmt.Errorf("host port %s is in use by a process of the host, at %s", s, netip.AddrPortFrom(at, port))
			}
		}
	}
	return nil
}
