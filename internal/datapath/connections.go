// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"

	"mustang/internal/lb"
)

// Connection is one translated connection.
type Connection struct {
	Protocol lb.Protocol
	// Client and Service are the two ends as the client sees them.
	Client, Service netip.AddrPort
	// Source and Backend are the two ends as the backend sees them. Source differs from Client where a pod reaches
	// itself, and where two connections would otherwise have looked the same to the backend.
	Source, Backend netip.AddrPort
	// ServiceID is 0 for a connection that goes to no service, but whose port had to be changed.
	ServiceID uint32
	// Closing is whether a FIN or RST has been seen from the client.
	Closing bool
}

// Connections returns the translated connections, sorted by client.
func (d *Datapath) Connections() ([]Connection, error) {
	if err := d.openTables(nil); err != nil {
		return nil, err
	}
	var connections []Connection
	for row, err := range d.rows() {
		if err != nil {
			return nil, err
		}
		if row.value.Flags&uint32(mustangConnectionFlagCONNECTION_FORWARD) == 0 {
			continue
		}
		from, to := row.key, row.value.To
		connections = append(connections, Connection{
			Protocol:  lb.Protocol(from.Proto),
			Client:    decodeAddrPort(from.Saddr, from.Sport),
			Service:   decodeAddrPort(from.Daddr, from.Dport),
			Source:    decodeAddrPort(to.Saddr, to.Sport),
			Backend:   decodeAddrPort(to.Daddr, to.Dport),
			ServiceID: row.value.Service,
			Closing:   row.value.Flags&uint32(mustangConnectionFlagCONNECTION_CLOSING) != 0,
		})
	}
	slices.SortFunc(connections, func(a, b Connection) int {
		return cmp.Or(a.Client.Compare(b.Client), a.Service.Compare(b.Service), cmp.Compare(a.Protocol, b.Protocol))
	})
	return connections, nil
}

// rows reads the connection table. Rows that come and go meanwhile may be missed.
func (d *Datapath) rows() iter.Seq2[row[mustangTuple, mustangConnection], error] {
	return batches[mustangTuple, mustangConnection](d.maps.Connections, mustangMapConnections, 4096)
}

// flush deletes the forward rows that match says, and the ways back that belong to them.
func (d *Datapath) flush(match func(from, to mustangTuple, c mustangConnection) bool) error {
	for row, err := range d.rows() {
		if err != nil {
			return err
		}
		if row.value.Flags&uint32(mustangConnectionFlagCONNECTION_FORWARD) == 0 ||
			!match(row.key, row.value.To, row.value) {
			continue
		}
		for _, key := range []mustangTuple{row.key, reverse(row.value.To)} {
			if err := remove(d.maps.Connections, mustangMapConnections, key); err != nil {
				return err
			}
		}
	}
	return nil
}
