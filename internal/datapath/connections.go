// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

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
	// State is what its packets told.
	State ConnectionState
	// Age is the time since the first packet, Idle the time since the last one, within a second.
	Age, Idle time.Duration
}

// ConnectionState is the state of a connection.
type ConnectionState uint8

// The states.
const (
	StateSYN         ConnectionState = iota // the client has not answered the backend yet
	StateEstablished                        // open, or closed by one end
	StateClosed                             // closed by both ends, or reset: another connection may take its place
	StateUDP                                // the backend has not answered
	StateReplied                            // UDP: it has
)

// String returns the lower-case name.
func (s ConnectionState) String() string {
	return [...]string{"syn", "established", "closed", "unreplied", "replied"}[s]
}

// Connections returns the translated connections, sorted by client, without those that have expired, or that programs would
// not use any more: their pod is gone, or their UDP backend. Those that come and go meanwhile may be missing.
func (d *Datapath) Connections() ([]Connection, error) {
	if err := d.objects.OpenTables(); err != nil {
		return nil, err
	}
	timeouts, err := d.timeouts()
	if err != nil {
		return nil, err
	}
	var connections []Connection
	var readErr error
	if err := d.objects.Slots.Each(func(_ uint32, slot objects.Slot) bool {
		c := d.decodeConnection(slot)
		valid := c.Idle <= timeouts[c.State]
		if valid {
			valid, readErr = d.isValid(slot)
		}
		if valid {
			connections = append(connections, c)
		}
		return readErr == nil
	}); err != nil || readErr != nil {
		return nil, errors.Join(err, readErr)
	}
	slices.SortFunc(connections, func(a, b Connection) int {
		return cmp.Or(a.Client.Compare(b.Client), a.Service.Compare(b.Service), cmp.Compare(a.Protocol, b.Protocol))
	})
	return connections, nil
}

// isValid reports whether programs use the connection of a slot, as ct_check of bpf/mustang/ct.h does.
func (d *Datapath) isValid(slot objects.Slot) (bool, error) {
	for _, end := range []struct {
		addr objects.Addr
		id   uint32
	}{{slot.From.Saddr, slot.Client}, {slot.Reply.Saddr, slot.Backend}} {
		if end.id == 0 {
			continue
		}
		row, ok, err := d.objects.Endpoints.Get(end.addr)
		if err != nil || !ok || row.Id != end.id {
			return false, err
		}
	}
	if slot.Service == 0 || slot.From.Proto != uint8(service.UDP) {
		return true, nil
	}
	backend := decodeAddrPort(slot.Reply.Saddr, slot.Reply.Sport)
	found, err := d.Services().at(context.Background(), service.Key{Frontend: decodeAddrPort(slot.From.Daddr, slot.From.Dport)})
	return slices.ContainsFunc(found, func(s service.Service) bool {
		return s.ID == slot.Service && slices.ContainsFunc(s.Backends, func(b service.Backend) bool { return b.Addr == backend })
	}), err
}

// timeouts returns the time-outs by state.
func (d *Datapath) timeouts() (map[ConnectionState]time.Duration, error) {
	t, err := d.objects.Timeouts()
	return map[ConnectionState]time.Duration{
		StateSYN: t.SYN, StateEstablished: t.Established, StateClosed: t.Closed, StateUDP: t.UDP, StateReplied: t.UDPReplied,
	}, err
}

func (d *Datapath) decodeConnection(slot objects.Slot) Connection {
	states := map[uint32]ConnectionState{
		objects.SlotSYN: StateSYN, objects.SlotOpen: StateEstablished, objects.SlotClosed: StateClosed,
		objects.SlotUDP: StateUDP, objects.SlotReplied: StateReplied,
	}
	from, reply := slot.From, slot.Reply
	return Connection{
		Protocol:  service.Protocol(from.Proto),
		Client:    decodeAddrPort(from.Saddr, from.Sport),
		Service:   decodeAddrPort(from.Daddr, from.Dport),
		Source:    decodeAddrPort(reply.Daddr, reply.Dport),
		Backend:   decodeAddrPort(reply.Saddr, reply.Sport),
		ServiceID: slot.Service,
		State:     states[d.objects.Slots.State(slot)],
		Age:       d.objects.Slots.Since(slot.Opened),
		Idle:      max(d.objects.Slots.Since(slot.Seen), 0),
	}
}
