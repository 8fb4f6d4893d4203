// SPDX-License-Identifier: Apache-2.0

package flows

import (
	"fmt"
	"net/netip"
	"time"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
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
	// ServiceID is 0 for a connection whose port had to be changed but that goes to no service.
	ServiceID uint32
	// State is the state that its packets imply.
	State State
	// Age is the time since the first packet, Idle the time since the last one, within a second.
	Age, Idle time.Duration
}

// State is the state of a connection.
type State uint8

// The states.
const (
	StateSYN         State = iota // the client has not answered the backend yet
	StateEstablished              // open, or closed by one end
	StateClosed                   // closed by both ends, or reset: another connection may take its place
	StateUDP                      // the backend has not answered
	StateReplied                  // UDP: it has
)

// String returns the lower-case name.
func (s State) String() string {
	return [...]string{"syn", "established", "closed", "unreplied", "replied"}[s]
}

// UnmarshalText accepts the names that String returns.
func (s *State) UnmarshalText(text []byte) error {
	for *s = StateSYN; *s <= StateReplied; *s++ {
		if s.String() == string(text) {
			return nil
		}
	}
	return fmt.Errorf("invalid state %q: want syn, established, closed, unreplied or replied", text)
}

func timeoutOf(t objects.Timeouts, s State) time.Duration {
	return [...]time.Duration{t.SYN, t.Established, t.Closed, t.UDP, t.UDPReplied}[s]
}

func decodeConnection(slots *objects.Slots, slot objects.Slot) Connection {
	states := map[uint32]State{
		objects.SlotSYN: StateSYN, objects.SlotOpen: StateEstablished, objects.SlotClosed: StateClosed,
		objects.SlotUDP: StateUDP, objects.SlotReplied: StateReplied,
	}
	from, reply := slot.From, slot.Reply
	return Connection{
		Protocol:  service.Protocol(from.Proto),
		Client:    rows.DecodeAddrPort(from.Saddr, from.Sport),
		Service:   rows.DecodeAddrPort(from.Daddr, from.Dport),
		Source:    rows.DecodeAddrPort(reply.Daddr, reply.Dport),
		Backend:   rows.DecodeAddrPort(reply.Saddr, reply.Sport),
		ServiceID: slot.Service,
		State:     states[slots.State(slot)],
		Age:       slots.Since(slot.Opened),
		Idle:      max(slots.Since(slot.Seen), 0),
	}
}
