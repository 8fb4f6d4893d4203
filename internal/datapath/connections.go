// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"net/netip"
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

// UnmarshalText accepts the names that String returns.
func (s *ConnectionState) UnmarshalText(text []byte) error {
	for *s = StateSYN; *s <= StateReplied; *s++ {
		if s.String() == string(text) {
			return nil
		}
	}
	return fmt.Errorf("invalid state %q: want syn, established, closed, unreplied or replied", text)
}

// Connections returns all of [ConnectionTable.List].
func (d *Datapath) Connections() ([]Connection, error) {
	return d.ConnectionTable().List(ConnectionFilter{})
}

// timeoutOf returns the time-out of a state.
func timeoutOf(t objects.Timeouts, s ConnectionState) time.Duration {
	return [...]time.Duration{t.SYN, t.Established, t.Closed, t.UDP, t.UDPReplied}[s]
}

func decodeConnection(slots *objects.Slots, slot objects.Slot) Connection {
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
		State:     states[slots.State(slot)],
		Age:       slots.Since(slot.Opened),
		Idle:      max(slots.Since(slot.Seen), 0),
	}
}
