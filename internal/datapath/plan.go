// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net/netip"
	"slices"

	"mustang/internal/service"
)

// A chunk is written under one hold of the lock. It ends when it has this many changes, or reaches this many backends or rows
// of tables.
const (
	chunkChanges  = 250
	chunkBackends = 1000
)

// change is all that changes at one frontend.
type change struct {
	put  []service.Service // to be written
	drop []service.Service // stored ones to be deleted
	// found are the services at the frontend when the change was planned.
	found []service.Service
}

func (c *change) frontend() netip.AddrPort {
	return slices.Concat(c.put, c.drop)[0].Frontend
}

// plan returns the changes that make the owner's services those wanted, deletions first, and counts those that stay.
func (w *writer) plan(t *snapshot, want []service.Service) ([]change, error) {
	have := make([]service.Service, 0, len(t.services))
	others := make(map[netip.AddrPort][]service.Service)
	var ports []service.Service // the others that have any at the node
	for _, s := range t.services {
		if s.Owner == w.owner {
			have = append(have, s)
		} else {
			others[s.Frontend] = append(others[s.Frontend], s)
			if s.NodePort || s.HealthCheckPort != 0 {
				ports = append(ports, s)
			}
		}
	}
	if err := service.CheckHealthPorts(want, ports); err != nil {
		return nil, err
	}
	for _, s := range want {
		for _, other := range others[s.Frontend] {
			if overlap(other.Protocol, s.Protocol) {
				return nil, ownerConflict(s, other)
			}
		}
	}
	if err := w.refusePods(want...); err != nil {
		return nil, err
	}
	diff := service.Diff(have, want)
	w.result.Unchanged = diff.Unchanged
	if err := w.requireRoom(t, len(t.services), diff); err != nil {
		return nil, err
	}
	// Those first that leave room for others.
	slices.SortStableFunc(diff.Update, func(a, b service.Update) int { return growth(a) - growth(b) })
	// Those of one frontend go together: a service of one protocol may take rows of one of another.
	byFrontend := make(map[netip.AddrPort]int, len(diff.Delete))
	changes := make([]change, 0, len(diff.Delete)+len(diff.Update)+len(diff.Add))
	at := func(frontend netip.AddrPort) *change {
		i, ok := byFrontend[frontend]
		if !ok {
			i = len(changes)
			byFrontend[frontend] = i
			changes = append(changes, change{})
		}
		return &changes[i]
	}
	for _, s := range diff.Delete {
		c := at(s.Frontend)
		c.drop, c.found = append(c.drop, s), append(c.found, s)
	}
	for _, u := range diff.Update {
		c := at(u.Want.Frontend)
		c.put, c.found = append(c.put, u.Want), append(c.found, u.Have)
	}
	for i, s := range diff.Add {
		c := at(s.Frontend)
		if c.put == nil {
			c.put = diff.Add[i : i+1 : i+1]
			continue
		}
		c.put = append(c.put, s)
	}
	return changes, nil
}

// growth returns the number of rows that an update adds.
func growth(u service.Update) int {
	more := sizeOf(u.Want).plus(sizeOf(u.Have), -1)
	return more.backends + more.blocks + more.ranges
}

// requireRoom returns a *FullError if the maps cannot hold the result.
func (w *writer) requireRoom(t *snapshot, rows int, diff service.Changes) error {
	sum := t.rows.plus(t.unreferenced.size(), -1)
	rows += len(diff.Add) - len(diff.Delete)
	for _, s := range diff.Add {
		sum = sum.plus(sizeOf(s), 1)
	}
	for _, u := range diff.Update {
		sum = sum.plus(sizeOf(u.Want), 1).plus(sizeOf(u.Have), -1)
	}
	for _, s := range diff.Delete {
		sum = sum.plus(sizeOf(s), -1)
	}
	for _, of := range []struct {
		table interface {
			Size() uint32
			Full() error
		}
		rows int
	}{{w.o.Services, rows}, {w.o.Backends, sum.backends}, {w.o.LookUp, sum.blocks}, {w.o.SourceRanges, sum.ranges}} {
		if of.rows > int(of.table.Size()) {
			return of.table.Full()
		}
	}
	return nil
}

// chunkSize returns the number of changes that go into the next chunk: of those for whose rows there is room, but one at
// least.
func (w *writer) chunkSize(changes []change) int {
	n, sum := 0, size{}
	room := size{int(w.o.Backends.Size()), int(w.o.LookUp.Size()), int(w.o.SourceRanges.Size())}.plus(w.used, -1)
	for n < len(changes) && n < chunkChanges && sum.backends < chunkBackends && sum.blocks < chunkBackends {
		for _, s := range changes[n].put {
			sum = sum.plus(sizeOf(s), 1)
		}
		if n > 0 && (sum.backends > room.backends || sum.blocks > room.blocks || sum.ranges > room.ranges) {
			break
		}
		n++
	}
	return n
}
