// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"cmp"

	"mustang/internal/datapath/objects"
	"mustang/internal/policy"
)

// shareOfJoining is the part of each map that changes of policies leave to pods that join: their rows come without a
// choice.
const shareOfJoining = 8

// mostVerdicts and mostRows are how many rows there are of a map at most once a change is settled: mostRows but for
// verdicts. Addresses of pods and nodes come besides. While a change is written the rows of before are there too: maps
// are at least twice as large, so that they lack no room for a change alone.
const mostVerdicts, mostRows = 1 << 18, 1 << 16

// counts are numbers of rows.
type counts struct{ addresses, verdicts, ports, numbers int }

func countRows(r policy.Rows) counts {
	return counts{len(r.Addresses), len(r.Verdicts), len(r.Ports), len(r.Numbers)}
}

// require returns a *FullError if a map is too small for the rows of a snapshot, and for a share of its size besides. 0
// is for none. No policy is to blame for the pods of the cluster.
func (p Policies) require(s policy.Snapshot, n counts, share int) error {
	for i := range s.Pods {
		n.addresses -= len(s.Pods[i].Addresses)
	}
	for i := range s.Nodes {
		n.addresses -= len(s.Nodes[i].Addresses)
	}
	return p.requireMaps(n, func(_, most int) int {
		if share == 0 {
			return most
		}
		return most - most/share
	})
}

// requireMaps returns a *FullError, with the rows that there are at most once a change is settled, if rows are more
// than the room of a map.
func (p Policies) requireMaps(n counts, room func(size, most int) int) error {
	t := p.tables()
	return cmp.Or(
		requireRoom(t.identities, n.addresses, mostRows, room), requireRoom(t.verdicts, n.verdicts, mostVerdicts, room),
		requireRoom(t.ports, n.ports, mostRows, room), requireRoom(t.numbers, n.numbers, mostRows, room),
	)
}

func requireRoom[K comparable, V any](t *objects.Table[K, V], rows, most int, room func(size, most int) int) error {
	size := int(t.Size())
	if most = min(most, size); rows > room(size, most) {
		return &objects.FullError{Map: t.Name, Size: uint32(most)}
	}
	return nil
}

// fits returns a *FullError if a map is too small while changes to rows are written: nothing is deleted before all is
// put.
func (p Policies) fits(rows policy.Rows, c policy.Changes) error {
	n := countRows(rows)
	return p.requireMaps(counts{
		n.addresses + len(c.Addresses.Delete), n.verdicts + len(c.Verdicts.Delete), n.ports + len(c.Ports.Delete), n.numbers +
			len(c.Numbers.Delete),
	}, func(size, _ int) int { return size })
}

// quota returns the quota of a namespace, of which maps have room for several parts; nil: there is none.
func (p Policies) quota(parts int) *policy.Quota {
	if parts < 2 {
		return nil
	}
	t := p.tables()
	rows := func(size uint32, most int) int { return min(most, int(size)) / parts }
	return &policy.Quota{
		Verdicts: rows(t.verdicts.Size(), mostVerdicts),
		Ports:    rows(t.ports.Size(), mostRows),
		Ranges:   rows(t.identities.Size(), mostRows),
		Numbers:  rows(t.numbers.Size(), mostRows),
		Overlaps: policy.MostOverlaps / parts, Work: policy.MostWork / parts,
	}
}
