// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"cmp"

	"mustang/internal/datapath/objects"
	"mustang/internal/policy"
)

// shareOfJoining is the part of each map that changes of policies leave to pods that join: their rows come without a choice.
const shareOfJoining = 8

// MostVerdicts is how many verdicts there are at most once a change is settled. While it is written those of before are there too: the map is twice as
// large, so that verdicts seldom lack room for a change alone.
const MostVerdicts = 1 << 18

// counts are numbers of rows.
type counts struct{ addresses, verdicts, ports, numbers int }

func countRows(r policy.Rows) counts {
	return counts{len(r.Addresses), len(r.Verdicts), len(r.Ports), len(r.Numbers)}
}

// require returns a *FullError if a map is too small for rows once a change is settled, and for a share of its size besides. 0 is for none.
func (w *writer) require(n counts, share uint32) error {
	return cmp.Or(requireRoom(w.tables().verdicts, n.verdicts, MostVerdicts, share), w.requireMaps(n, share))
}

// requireMaps is require for rows while a change is written.
func (w *writer) requireMaps(n counts, share uint32) error {
	t := w.tables()
	return cmp.Or(
		requireRoom(t.identities, n.addresses, t.identities.Size(), share), requireRoom(t.verdicts, n.verdicts, t.verdicts.Size(), share),
		requireRoom(t.ports, n.ports+int(t.ports.Size())/shareOfListeners, t.ports.Size(), share), requireRoom(t.numbers, n.numbers, t.numbers.Size(), share),
	)
}

func requireRoom[K, V any](t *objects.Table[K, V], rows int, most, share uint32) error {
	size := most
	if share > 0 {
		size -= size / share
	}
	if rows > int(size) {
		return &objects.FullError{Map: t.Name, Size: most}
	}
	return nil
}

// room returns a function that returns a *FullError if a map is too small for changes of some rows. Some of them may be in place of others.
func (w *writer) room(have policy.Rows) func(policy.Changes) error {
	n := countRows(have)
	return func(c policy.Changes) error {
		return w.requireMaps(counts{
			n.addresses + len(c.Addresses.Put), n.verdicts + len(c.Verdicts.Put), n.ports + len(c.Ports.Put), n.numbers + len(c.Numbers.Put),
		}, 0)
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
	if ranges := n.addresses - hosts(s); ranges < int(w.tables().identities.Size())/(2*shareOfJoining) {
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
