// SPDX-License-Identifier: Apache-2.0

package flows

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
	"mustang/internal/service"
)

// Flows reads the events of programs.
type Flows struct{ Objects *objects.Objects }

// Verdict is the fate of a connection or a packet.
type Verdict string

// The verdicts.
const (
	Made    Verdict = "made"    // a connection got its rows, or a socket its backend
	Dropped Verdict = "dropped" // a packet was dropped, or a call of a socket refused
	// Denied is a connection that policies deny, with the rule. Its packet is also dropped.
	Denied Verdict = "denied"
	// Audited is a connection that audited policies deny: it passes.
	Audited Verdict = "audited"
)

// Event is a connection or a packet that a program reports.
type Event struct {
	Time    time.Time
	Verdict Verdict
	Reason  string // why a packet was dropped, as the counter of its reason is named without "drop_"
	// Source and Destination are the ends as the sender has them, with port 0 if it lacks one; not valid if the packet
	// lacks the end. The destination of a denied connection is the backend itself.
	Source, Destination netip.AddrPort
	Backend             netip.AddrPort // the destination of a connection to a service; not valid if unknown or missing
	Protocol            service.Protocol
	Message             uint8  // the type of an ICMP message, which lacks ports
	Service             bool   // true if the destination is certainly a service
	Rule                uint32 // the number of the rule that denies, of Policies.Rules
	Place               string // where the program runs: objects.AttachPoint, or "socket"
	OnLink              bool   // whether the device there is the host's end of a pod's link
	// Device is the index of the device there. Namespace is the cookie of the network namespace of the pod's own device,
	// or of the socket; 0 if unknown.
	Device    int
	Namespace uint64
	// Fields of the frame; Length is in bytes, 0 if unknown.
	MAC       net.HardwareAddr
	EtherType uint16
	Length    int
	Flags     uint8 // the bits of TCP's header
}

// IsICMP reports whether the packet is a message of ICMP.
func (e *Event) IsICMP() bool {
	return e.Protocol == unix.IPPROTO_ICMP || e.Protocol == unix.IPPROTO_ICMPV6
}

// Watch calls each with the events of the given verdicts, or of all if none is given, until ctx ends or a call
// returns an error. It calls leftOut with the number of omitted events, unless 0: each CPU reports at most 2,000 a
// second. Errors: *lock.Error if another process watches; os.ErrNotExist once the datapath is removed.
func (f Flows) Watch(ctx context.Context, each func(Event) error, leftOut func(uint64) error,
	verdicts ...Verdict) error {
	of := map[Verdict]uint32{Made: objects.EventMade, Dropped: objects.EventDropped, Denied: objects.EventDenied,
		Audited: objects.EventDenied}
	var kinds []uint32
	for _, v := range verdicts {
		kinds = append(kinds, of[v])
	}
	if len(verdicts) == 0 {
		kinds = []uint32{objects.EventMade, objects.EventDropped, objects.EventDenied}
	}
	return f.Objects.Watch(ctx, func(e objects.Event, at time.Time) error { return each(decode(e, at)) },
		leftOut, kinds...)
}

func decode(e objects.Event, at time.Time) Event {
	t := e.Tuple
	event := Event{
		Time: at, Verdict: Dropped, Source: end(t.Saddr.Bytes, t.Sport), Destination: end(t.Daddr.Bytes, t.Dport),
		Backend: end(e.Backend.Bytes, e.BackendPort), Protocol: service.Protocol(t.Proto), Service: e.Service != 0,
		Rule:  e.Rule,
		Place: string(e.At()), Device: int(e.Ifindex), Namespace: e.Netns, Length: int(e.Length), Flags: e.TcpFlags,
		EtherType: rows.SwapPort(e.Ethertype),
		OnLink: slices.Contains([]objects.AttachPoint{objects.AttachHost, objects.AttachTun, objects.AttachNetkit},
			e.At()),
	}
	if names := Drops(); int(e.Reason) < len(names) && e.Reason != 0 {
		event.Reason = names[e.Reason][0]
	}
	switch {
	case uint32(e.Kind) == objects.EventMade:
		event.Verdict = Made
	case uint32(e.Kind) == objects.EventDenied && e.Audited != 0:
		event.Verdict = Audited
	case uint32(e.Kind) == objects.EventDenied:
		event.Verdict = Denied
	}
	if e.At() == objects.AttachCgroup {
		event.Place, event.Service = "socket", true
	}
	if e.Mac != [6]uint8{} {
		event.MAC = net.HardwareAddr(e.Mac[:])
	}
	if event.IsICMP() { // programs have its type in place of ports
		event.Message = uint8(event.Source.Port())
		event.Source, event.Destination = netip.AddrPortFrom(event.Source.Addr(), 0),
			netip.AddrPortFrom(event.Destination.Addr(), 0)
	}
	return event
}

// end returns an address and a port in network order; not valid if the address is missing.
func end(addr [16]uint8, port uint16) netip.AddrPort {
	if addr == [16]uint8{} && port == 0 {
		return netip.AddrPort{}
	}
	return rows.DecodeAddrPort(objects.Addr{Bytes: addr}, port)
}

// Counters returns all counters, in a fixed order.
func (f Flows) Counters() ([]Counter, error) {
	rows, _, err := f.Objects.Metrics.Get(0)
	if err != nil {
		return nil, err
	}
	var counters []Counter
	add := func(names [][2]string, prefix string, count func(cpu, i int) uint64) {
		for i, name := range names {
			if i == 0 {
				continue // counts nothing
			}
			c := Counter{Name: prefix + name[0], Drop: prefix != "", Meaning: name[1]}
			for cpu := range rows {
				c.Packets += count(cpu, i)
			}
			counters = append(counters, c)
		}
	}
	add(Metrics(), "", func(cpu, i int) uint64 { return rows[cpu].Count[i] })
	add(Drops(), "drop_", func(cpu, i int) uint64 { return rows[cpu].Drops[i] })
	return counters, nil
}

// Connection is one translated connection.
type Connection struct {
	Protocol service.Protocol
	// Client and Service are the two ends as the client sees them.
	Client, Service netip.AddrPort
	// Source and Backend are the two ends as the backend sees them. Source differs from Client where a pod reaches
	// itself, and where two connections would otherwise have been equal to the backend.
	Source, Backend netip.AddrPort
	ServiceID       uint32 // 0 for a connection whose port had to be changed but that goes to no service
	State           State  // the state that its packets imply
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

// ServiceTraffic counts packets translated for a service, to its backends and back, without socket translation.
type ServiceTraffic struct{ To, Back objects.Traffic }

// ServiceTraffic returns the traffic of services, by ID. Services that share one of the objects.CountedServices rows
// of counters are missing. It takes no lock.
func (f Flows) ServiceTraffic() (map[uint32]ServiceTraffic, error) {
	byRow := map[uint32][]uint32{}
	for row, err := range f.Objects.Services.All() {
		if err != nil {
			return nil, err
		}
		counted := row.Value.CountsRow()
		byRow[counted] = append(byRow[counted], row.Value.Id)
	}
	all := make(map[uint32]ServiceTraffic, len(byRow))
	for row, ids := range byRow {
		if len(ids) > 1 {
			continue
		}
		to, back, err := f.Objects.CountsOf(row)
		if err != nil {
			return nil, err
		}
		all[ids[0]] = ServiceTraffic{to, back}
	}
	return all, nil
}
