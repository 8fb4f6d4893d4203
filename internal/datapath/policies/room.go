// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"cmp"

	"mustang/internal/datapath/objects"
	"mustang/internal/policy"
)

// shareOfJoining is the part of each map that changes of policies leave to pods that join: their rows come without a choice.
const shareOfJoining = 8

// mostVerdicts and mostRows are how many rows there are of a map at most once a change is settled: mostRows but for verdicts. Addresses of pods and nodes
// come besides. While a change is written the rows of before are there too: new maps are at least twice as large, so that they lack no room for a
// change alone. Those of an older version keep their size.
const mostVerdicts, mostRows = 1 << 18, 1 << 16

// mostPieces is how many pieces what an owner says has at most: 7.5 MiB. What it said before is there too until a change is settled, and pods' documents besides:
// a new map has documentRows.
const (
	documentRows = 32 << 10
	mostPieces   = 15 << 10
)

// mostPieces is how many pieces of what an owner says the map has room for.
func (p Policies) mostPieces() int {
	return int(min(mostPieces, p.tables().documents.Size()*mostPieces/documentRows))
}

// counts are numbers of rows.
type counts struct{ addresses, verdicts, ports, numbers int }

func countRows(r policy.Rows) counts {
	return counts{len(r.Addresses), len(r.Verdicts), len(r.Ports), len(r.Numbers)}
}

// require returns a *FullError if a map is too small for the rows of a snapshot once a change is settled, and for a share of its size besides. 0 is
// for none. No policy is to blame for the pods of the cluster.
func (w *writer) require(s policy.Snapshot, n counts, share int) error {
	n.addresses -= hosts(s)
	return w.requireMaps(n, func(_, most int) int {
		if share == 0 {
			return most
		}
		return most - most/share
	})
}

// requireMaps returns a *FullError, with the rows that there are at most once a change is settled, if rows are more than the room of a map.
func (w *writer) requireMaps(n counts, room func(size, most int) int) error {
	t := w.tables()
	return cmp.Or(
		requireRoom(t.identities, n.addresses, mostRows, room), requireRoom(t.verdicts, n.verdicts, mostVerdicts, room),
		requireRoom(t.ports, n.ports+allListeners, mostRows, room), requireRoom(t.numbers, n.numbers, mostRows, room),
	)
}

func requireRoom[K, V any](t *objects.Table[K, V], rows, most int, room func(size, most int) int) error {
	size := int(t.Size())
	if most = min(most, size); rows > room(size, most) {
		return &objects.FullError{Map: t.Name, Size: uint32(most)}
	}
	return nil
}

// fits returns a *FullError if a map is too small while changes to the rows of the compiler are written: nothing is deleted before all is put.
func (w *writer) fits(c policy.Changes) error {
	n := countRows(w.compiler.Rows())
	return w.requireMaps(counts{
		n.addresses + len(c.Addresses.Delete), n.verdicts + len(c.Verdicts.Delete), n.ports + len(c.Ports.Delete), n.numbers + len(c.Numbers.Delete),
	}, func(size, _ int) int { return size })
}

// leaveRoom returns a *FullError if a snapshot, once nothing is left of the policies of before, has no room for pods that join.
func (w *writer) leaveRoom(s policy.Snapshot) error {
	if w.require(s, countRows(w.compiler.Rows()), shareOfJoining) == nil {
		return nil
	}
	s.Previous = nil
	rows, err := policy.Compile(s, policy.Rows{})
	if err != nil {
		return err
	}
	return w.require(s, countRows(rows), shareOfJoining)
}

// hosts returns how many addresses pods and nodes have.
func hosts(s policy.Snapshot) (n int) {
	for i := range s.Pods {
		n += len(s.Pods[i].Addresses)
	}
	for i := range s.Nodes {
		n += len(s.Nodes[i].Addresses)
	}
	return n
}
