// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"cmp"

	"mustang/internal/datapath/objects"
	"mustang/internal/policy"
)

// shareOfJoining is the part of each map that changes of policies leave to pods that join: their rows come without a choice.
const shareOfJoining = 8

// mostVerdicts and mostRows are how many rows there are of a map at most once a change is settled: mostRows but for verdicts. While it is written those of
// before are there too: new maps are twice as large, so that they lack no room for a change alone. Those of an older version keep their size.
const mostVerdicts, mostRows = 1 << 18, 1 << 16

// counts are numbers of rows.
type counts struct{ addresses, verdicts, ports, numbers int }

func countRows(r policy.Rows) counts {
	return counts{len(r.Addresses), len(r.Verdicts), len(r.Ports), len(r.Numbers)}
}

// require returns a *FullError if a map is too small for rows once a change is settled, and for a share of its size besides. 0 is for none.
func (w *writer) require(n counts, share int) error {
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

// room returns a function that returns a *FullError if a map is too small for changes of some rows. Some of them may be in place of others.
func (w *writer) room(have policy.Rows) func(policy.Changes) error {
	n := countRows(have)
	return func(c policy.Changes) error {
		return w.requireMaps(counts{
			n.addresses + len(c.Addresses.Put), n.verdicts + len(c.Verdicts.Put), n.ports + len(c.Ports.Put), n.numbers + len(c.Numbers.Put),
		}, func(size, _ int) int { return size })
	}
}

// leaveRoom returns a *FullError if a snapshot, once nothing is left of the policies of before, has no room for pods that join.
func (w *writer) leaveRoom(s policy.Snapshot) error {
	if w.require(countRows(w.compiler.Rows()), shareOfJoining) == nil {
		return nil
	}
	s.Previous = nil
	rows, err := policy.Compile(s, policy.Rows{})
	if err != nil {
		return err
	}
	n := countRows(rows)
	if ranges := n.addresses - hosts(s); ranges < mostRows/(2*shareOfJoining) {
		n.addresses = ranges // of pods of the cluster, no policy is to blame
	}
	return w.require(n, shareOfJoining)
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
