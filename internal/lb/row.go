// SPDX-License-Identifier: Apache-2.0

package lb

import (
	"net/netip"
	"slices"
)

// Row is one entry of the datapath's service table with the backends that it leads to. A service of protocol Any is
// two rows with one ID.
type Row struct {
	// ID of the service that the row is of.
	ID uint32
	// Addr and Port of the frontend. IPv4 addresses are v4-mapped, as in the table.
	Addr [16]byte
	Port uint16
	// Protocol is TCP or UDP, never Any.
	Protocol Protocol
	// Backends, sorted.
	Backends []netip.AddrPort
}

// Rows returns the rows of s, ordered by protocol. The backends are sorted, so that equal services give equal rows.
func Rows(s Service) []Row {
	var rows []Row
	backends := sorted(s.Backends)
	for _, p := range s.Protocol.Each() {
		rows = append(rows, Row{
			ID:       s.ID,
			Addr:     s.Frontend.Addr().As16(),
			Port:     s.Frontend.Port(),
			Protocol: p,
			Backends: backends,
		})
	}
	return rows
}

// Join turns rows back into services, sorted by ID: a TCP and a UDP row of one ID become one service of protocol Any.
func Join(rows []Row) []Service {
	byID := make(map[uint32]*Service, len(rows))
	for _, row := range rows {
		if s, ok := byID[row.ID]; ok {
			if s.Protocol != row.Protocol {
				s.Protocol = Any
			}
			continue
		}
		byID[row.ID] = &Service{
			ID:       row.ID,
			Frontend: netip.AddrPortFrom(netip.AddrFrom16(row.Addr).Unmap(), row.Port),
			Protocol: row.Protocol,
			Backends: sorted(row.Backends),
		}
	}
	services := make([]Service, 0, len(byID))
	for _, s := range byID {
		services = append(services, *s)
	}
	slices.SortFunc(services, func(a, b Service) int { return int(a.ID) - int(b.ID) })
	return services
}
