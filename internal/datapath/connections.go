// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"cmp"
	"errors"
	"net/netip"
	"slices"

	"mustang/internal/datapath/objects"
	"mustang/internal/service"
)

// Connection is one translated connection.
type Connection struct {
	Protocol service.Protocol
	// Client and Service are the two ends as the client sees them.
	Client, Service netip.AddrPort
	// Source and Backend are the two ends as the backend sees them. Source differs from Client where a pod reaches
	// itself, and where two connections would otherwise have been equal to the backend.
	Source, Backend netip.AddrPort
	// ServiceID is 0 for a connection to no service whose port had to be changed.
	ServiceID uint32
	// Closing tells whether the client has sent a FIN or RST.
	Closing bool
}

// Connections returns the translated connections, sorted by client. Those that come and go meanwhile may be missing.
func (d *Datapath) Connections() ([]Connection, error) {
	if err := d.objects.OpenTables(); err != nil {
		return nil, err
	}
	var connections []Connection
	for row, err := range d.objects.Connections.All() {
		if err != nil {
			return nil, err
		}
		if row.Value.Flags&objects.ConnectionForward == 0 {
			continue
		}
		from, to := row.Key, row.Value.To
		connections = append(connections, Connection{
			Protocol:  service.Protocol(from.Proto),
			Client:    decodeAddrPort(from.Saddr, from.Sport),
			Service:   decodeAddrPort(from.Daddr, from.Dport),
			Source:    decodeAddrPort(to.Saddr, to.Sport),
			Backend:   decodeAddrPort(to.Daddr, to.Dport),
			ServiceID: row.Value.Service,
			Closing:   row.Value.Flags&objects.ConnectionClosing != 0,
		})
	}
	slices.SortFunc(connections, func(a, b Connection) int {
		return cmp.Or(a.Client.Compare(b.Client), a.Service.Compare(b.Service), cmp.Compare(a.Protocol, b.Protocol))
	})
	return connections, nil
}

// flush deletes the connections that match, given by their forward rows, in both directions. Programs may use their copies
// until it returns, as if the rows were deleted then. To void copies before would not prevent that: a program may copy a row
// just before it is deleted.
func flush(o *objects.Objects, match func(from objects.Tuple, c objects.Connection) bool) (err error) {
	defer func() { err = errors.Join(err, o.Filter.Change()) }()
	for row, err := range o.Connections.All() {
		if err != nil {
			return err
		}
		if row.Value.Flags&objects.ConnectionForward == 0 || !match(row.Key, row.Value) {
			continue
		}
		for _, key := range []objects.Tuple{row.Key, reverse(row.Value.To)} {
			if err := o.Connections.Delete(key); err != nil {
				return err
			}
		}
	}
	return nil
}
