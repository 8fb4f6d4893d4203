// SPDX-License-Identifier: Apache-2.0

package flows

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
	"mustang/internal/service"
)

// Table reads connections, which programs open and close at any time, and deletes some.
type Table struct {
	objects *objects.Objects
	at      func(context.Context, service.Key) ([]service.Service, error)
}

// NewTable returns the handle of the connections of a datapath. at reads the services that have a part of a frontend.
func NewTable(o *objects.Objects, at func(context.Context, service.Key) ([]service.Service, error)) Table {
	return Table{o, at}
}

// Filter selects connections. Its zero value selects all.
type Filter struct {
	Client netip.Addr // the client's address, if valid
	// Service and Backend are the two addresses, if valid. Port 0 stands for all ports.
	Service, Backend netip.AddrPort
	Protocol         service.Protocol // the protocol of the connections; service.Any for all
	States           []State          // the states that are selected; none for all
}

func (f Filter) matches(c Connection) bool {
	at := func(want, have netip.AddrPort) bool {
		return !want.IsValid() || want.Addr() == have.Addr() && (want.Port() == 0 || want.Port() == have.Port())
	}
	return (!f.Client.IsValid() || f.Client == c.Client.Addr()) && at(f.Service, c.Service) && at(f.Backend, c.Backend) &&
		(f.Protocol == service.Any || f.Protocol == c.Protocol) && (len(f.States) == 0 || slices.Contains(f.States, c.State))
}

// Stats counts the slots of the table. Each slot is in States, Expired, Void, or free.
type Stats struct {
	Slots  int           // the number of connections that the table holds at most
	States map[State]int // counts the connections that have neither expired nor are void, by state
	// Expired counts connections whose time-out is over, and Void connections whose pod or UDP backend is gone. New
	// connections take their slots, and the slots of closed ones.
	Expired, Void int
	// Largest is an address of the client with the most open connections, and LargestOpen their number. Clients that are
	// not pods of this node count as one. Largest is not valid for these, nor without open connections.
	Largest     netip.Addr
	LargestOpen int
	Share       int // the limit of open connections of a client: at this number it gets no new one
}

// Open returns the number of connections that are neither closed, expired nor void.
func (s Stats) Open() (n int) {
	for state, count := range s.States {
		if state != StateClosed {
			n += count
		}
	}
	return n
}

// List returns the connections that a filter selects, sorted by client. Left out are expired connections and those that
// programs no longer use: their pod or UDP backend is gone. Those that come and go meanwhile may be missing.
func (t Table) List(f Filter) (list []Connection, err error) {
	err = t.each(func(c Connection, _ objects.Slot, expired, void bool) {
		if !expired && !void && f.matches(c) {
			list = append(list, c)
		}
	})
	slices.SortFunc(list, func(a, b Connection) int {
		return cmp.Or(a.Client.Compare(b.Client), a.Service.Compare(b.Service), cmp.Compare(a.Protocol, b.Protocol))
	})
	return list, err
}

// Flush deletes the connections that a filter selects, and returns their number. If the context ends, it stops. The
// next packet of a client opens the connection again: with the same backend while the service keeps its backends.
func (t Table) Flush(ctx context.Context, f Filter) (n int, err error) {
	err = t.objects.WithLock(ctx, func() error {
		n, err = t.objects.EndConnections(func(slot objects.Slot) bool {
			return ctx.Err() == nil && f.matches(decodeConnection(t.objects.Slots, slot))
		})
		return errors.Join(err, ctx.Err())
	})
	return n, err
}

// Stats counts the connections.
func (t Table) Stats() (s Stats, err error) {
	s.States = make(map[State]int)
	type client struct {
		addr netip.Addr
		open int
	}
	clients := make(map[uint32]client)
	err = t.each(func(c Connection, slot objects.Slot, expired, void bool) {
		switch {
		case expired:
			s.Expired++
		case void:
			s.Void++
		default:
			s.States[c.State]++
			if c.State != StateClosed {
				clients[slot.Client] = client{c.Client.Addr(), clients[slot.Client].open + 1}
			}
		}
	})
	if err != nil {
		return s, err
	}
	for id, c := range clients {
		if c.open <= s.LargestOpen {
			continue
		}
		s.Largest, s.LargestOpen = c.addr, c.open
		if id == 0 {
			s.Largest = netip.Addr{}
		}
	}
	s.Slots = t.objects.Slots.Len()
	s.Share, err = t.objects.Share()
	return s, err
}

// Timeouts returns the time-outs.
func (t Table) Timeouts() (objects.Timeouts, error) { return t.objects.Timeouts() }

// SetTimeouts changes the time-outs, for all connections at once. Each must be between 1 s and 30 days.
func (t Table) SetTimeouts(ctx context.Context, timeouts objects.Timeouts) error {
	for state := StateSYN; state <= StateReplied; state++ {
		const least, most = time.Second, 30 * 24 * time.Hour
		if value := timeoutOf(timeouts, state); value < least || value > most {
			return fmt.Errorf("time-out %s of state %s: want between %s and %s", value, state, least, most)
		}
	}
	return t.objects.WithLock(ctx, func() error { return t.objects.SetTimeouts(timeouts) })
}

// Warnings returns one line for each of these facts to show before a change: more than four of five slots have open
// connections; the size differs from wanted, unless wanted is 0.
func (t Table) Warnings(wanted uint32) (warnings []string, err error) {
	size := t.objects.Slots.Len()
	if wanted != 0 && int(wanted) != size {
		warnings = append(warnings, fmt.Sprintf(
			"the table has %d slots, not %d: the size is set when the maps are created", size, wanted))
	}
	full := func(open int) bool { return 5*open > 4*size }
	// The count of programs has connections that have expired since. Look closer only where it may matter.
	if counted, err := t.objects.Slots.Open(); err != nil || !full(int(counted)) {
		return warnings, err
	}
	stats, err := t.Stats()
	if open := stats.Open(); err == nil && full(open) {
		warnings = append(warnings,
			fmt.Sprintf("connections: %d open of %d slots: mustang conntrack stats names their clients", open, size))
	}
	return warnings, err
}

// each calls fn with a copy of each connection. Programs do not use void or expired connections.
func (t Table) each(fn func(c Connection, slot objects.Slot, expired, void bool)) error {
	timeouts, err := t.objects.Timeouts()
	if err != nil {
		return err
	}
	endpoints, err := t.objects.Endpoints.Rows()
	if err != nil {
		return err
	}
	check := validity{t.at, endpoints, make(map[netip.AddrPort][]service.Service)}
	var checkErr error
	err = t.objects.Slots.Each(func(_ uint32, slot objects.Slot) bool {
		var used bool
		if used, checkErr = check.holds(slot); checkErr == nil {
			c := decodeConnection(t.objects.Slots, slot)
			fn(c, slot, c.Idle > timeoutOf(timeouts, c.State), !used)
		}
		return checkErr == nil
	})
	return errors.Join(err, checkErr)
}

// validity finds connections that programs would not use, as ct_check of bpf/mustang/ct.h does.
type validity struct {
	at        func(context.Context, service.Key) ([]service.Service, error)
	endpoints map[objects.Addr]objects.Endpoint
	services  map[netip.AddrPort][]service.Service
}

// holds reports whether programs use the connection of a slot: its pods are there, and with UDP its backend.
func (v validity) holds(slot objects.Slot) (bool, error) {
	if slot.Client != 0 && v.endpoints[slot.From.Saddr].Id != slot.Client ||
		slot.Backend != 0 && v.endpoints[slot.Reply.Saddr].Id != slot.Backend {
		return false, nil
	}
	if slot.Service == 0 || slot.From.Proto != uint8(service.UDP) {
		return true, nil
	}
	frontend := rows.DecodeAddrPort(slot.From.Daddr, slot.From.Dport)
	found, ok := v.services[frontend]
	if !ok {
		var err error
		if found, err = v.at(context.Background(), service.Key{Frontend: frontend}); err != nil {
			return false, err
		}
		v.services[frontend] = found
	}
	backend := rows.DecodeAddrPort(slot.Reply.Saddr, slot.Reply.Sport)
	return slices.ContainsFunc(found, func(s service.Service) bool {
		return s.ID == slot.Service &&
			slices.ContainsFunc(s.Backends, func(b service.Backend) bool { return b.Addr == backend })
	}), nil
}
