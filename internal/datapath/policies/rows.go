// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
	"mustang/internal/policy"
)

// Rows as bpf/mustang/policy.h has them; package policy has the others.
type (
	settings struct {
		Lengths      [129]uint8 // of the prefixes in identities but for whole addresses, the longest first
		Count, Audit uint8
		Reserved     [5]uint8
	}
	// follows identifies the files that the rows follow.
	follows struct {
		Digest   [32]byte // of the files of policies; zero: none
		Changing uint8    // a process changes rows, or was killed while it did
		Reserved [103]uint8
	}
	prefix struct {
		Addr   [16]byte
		Length uint32
	}
)

const followsRow = uint32(2) // the row of policy_settings that stores which files the rows follow

type tables struct {
	settings   *objects.Table[uint32, settings] // two rows; the filter names the one in force
	follows    *objects.Table[uint32, follows]  // the third row
	identities *objects.Table[prefix, uint32]
	verdicts   *objects.Table[policy.VerdictKey, policy.Verdict]
	ports      *objects.Table[policy.PortKey, policy.PortVerdict]
	numbers    *objects.Table[policy.Digest, uint32]
}

func (p Policies) tables() tables {
	return tables{
		table[uint32, settings](p, "policy_settings"), table[uint32, follows](p, "policy_settings"),
		table[prefix, uint32](p, "identities"), table[policy.VerdictKey, policy.Verdict](p, "verdicts"),
		table[policy.PortKey, policy.PortVerdict](p, "policy_ports"), table[policy.Digest, uint32](p, "policy_numbers"),
	}
}

func table[K comparable, V any](p Policies, name string) *objects.Table[K, V] {
	return &objects.Table[K, V]{Map: p.Objects.Policies[name], Name: name}
}

func (p Policies) readRows() (have policy.Rows, err error) {
	t := p.tables()
	have.Addresses, have.Endpoints = map[netip.Prefix]uint32{}, map[netip.Addr]policy.Sets{}
	for row, err := range t.identities.All() {
		if err != nil {
			return have, err
		}
		have.Addresses[netip.PrefixFrom(netip.AddrFrom16(row.Key.Addr), int(row.Key.Length))] = row.Value
	}
	for row, err := range p.Objects.Endpoints.All() {
		if err != nil {
			return have, err
		}
		if sets := (policy.Sets{Egress: row.Value.Egress, Ingress: row.Value.Ingress}); sets != (policy.Sets{}) {
			have.Endpoints[netip.AddrFrom16(row.Key.Bytes)] = sets
		}
	}
	if have.Verdicts, err = t.verdicts.Rows(); err != nil {
		return have, err
	}
	if have.Ports, err = t.ports.Rows(); err != nil {
		return have, err
	}
	have.Numbers, err = t.numbers.Rows()
	return have, err
}

// shareOfJoining is the part of each map that changes of policies leave to pods that join: their rows come without a
// choice.
const shareOfJoining = 8

// mostVerdicts and mostRows limit the rows of a map between changes: mostRows but for verdicts. Addresses of pods and
// nodes come on top. While a change is written, its rows and the previous ones are there: maps are twice as large.
const mostVerdicts, mostRows = 1 << 18, 1 << 16

// require returns a *FullError if the rows of a map exceed its size. extra are rows to delete, or without a policy.
func (p Policies) require(r policy.Rows, extra [4]int, room func(size, most int) int) error {
	t := p.tables()
	return cmp.Or(
		requireRoom(t.identities, len(r.Addresses)+extra[0], mostRows, room),
		requireRoom(t.verdicts, len(r.Verdicts)+extra[1], mostVerdicts, room),
		requireRoom(t.ports, len(r.Ports)+extra[2], mostRows, room),
		requireRoom(t.numbers, len(r.Numbers)+extra[3], mostRows, room),
	)
}

func requireRoom[K comparable, V any](t *objects.Table[K, V], rows, most int, room func(size, most int) int) error {
	size := int(t.Size())
	if most = min(most, size); rows > room(size, most) {
		return &objects.FullError{Map: t.Name, Size: uint32(most)}
	}
	return nil
}

// quota returns the quota of a namespace where maps are divided into some parts; nil: there is none.
func (p Policies) quota(parts int) *policy.Quota {
	if parts < 2 {
		return nil
	}
	t := p.tables()
	rows := func(size uint32, most int) int { return min(most, int(size)) / parts }
	return &policy.Quota{
		Verdicts: rows(t.verdicts.Size(), mostVerdicts), Ports: rows(t.ports.Size(), mostRows),
		Ranges: rows(t.identities.Size(), mostRows), Numbers: rows(t.numbers.Size(), mostRows),
		Overlaps: policy.MostOverlaps / parts, Work: policy.MostWork / parts,
	}
}

// writer brings rows from one state to another in steps. Before the last step, the rule sets of the previous policies
// are still complete, so each verdict comes from the old policies or from the new ones.
type writer struct {
	Policies
	steps []step
	audit bool // in the end
}

// step is a set of rows to write, with the summaries for programs before and after.
type step struct {
	policy.Changes
	want          policy.Rows
	before, after summary
}

// summary is the part of some rows that programs read first: the lengths of prefixes of addresses, and whether an
// endpoint has a rule set.
type summary struct {
	lengths [129]bool
	inForce bool
}

func summarize(r policy.Rows) (s summary) {
	for p := range r.Addresses {
		s.lengths[p.Bits()] = true
	}
	s.inForce = len(r.Endpoints) > 0
	return s
}

// plan compiles policies, checks that they fit, and writes nothing. Errors: as of policy.Steps, *objects.FullError.
func (p Policies) plan(docs documents, now state, limits policy.Limits) (*writer, error) {
	w := &writer{Policies: p, audit: now.audit()}
	s, err := p.snapshot(docs, now)
	if err != nil {
		return nil, err
	}
	have, err := p.readRows()
	if err != nil {
		return nil, err
	}
	steps, err := policy.Steps(s, have, limits)
	if err != nil {
		return nil, err
	}
	if limits.Work > 0 {
		addresses := 0 // no policy is to blame for the pods of the cluster
		for i := range s.Pods {
			addresses += len(s.Pods[i].Addresses)
		}
		for i := range s.Nodes {
			addresses += len(s.Nodes[i].Addresses)
		}
		left := func(_, most int) int { return most - most/shareOfJoining }
		if limits.Joins {
			left = func(_, most int) int { return most }
		}
		if err := p.require(steps[len(steps)-1], [4]int{-addresses}, left); err != nil {
			return nil, err
		}
	}
	for _, rows := range steps {
		maps.DeleteFunc(rows.Endpoints, func(_ netip.Addr, sets policy.Sets) bool { return sets == policy.Sets{} })
		c := policy.Diff(have, rows)
		gone := [4]int{len(c.Addresses.Delete), len(c.Verdicts.Delete), len(c.Ports.Delete), len(c.Numbers.Delete)}
		if err := p.require(rows, gone, func(size, _ int) int { return size }); err != nil {
			return nil, err // nothing is deleted before all is put
		}
		w.steps = append(w.steps, step{c, rows, summarize(have), summarize(rows)})
		have = rows
	}
	return w, nil
}

// write writes the rows and returns their number. join writes the rows of joining endpoints, which are given their rule
// sets; nil: none join.
func (w *writer) write(join func(map[netip.Addr]policy.Sets) error) (n int, err error) {
	if len(w.steps) == 0 && join != nil {
		return 0, join(nil)
	}
	for _, s := range w.steps {
		if err := w.step(s, join); err != nil {
			return n, err
		}
		n, join = n+s.Len(), nil
	}
	return n, nil
}

// step writes the differences between two states: a row is written before others refer to it, and deleted after them.
func (w *writer) step(c step, join func(map[netip.Addr]policy.Sets) error) error {
	t := w.tables()
	if c.Len() == 0 && join == nil {
		return w.prepare(w.audit, c.after)
	}
	if err := errors.Join(putAll(t.numbers, c.Numbers.Put), putAll(t.ports, c.Ports.Put),
		putAll(t.verdicts, c.Verdicts.Put)); err != nil {
		return err
	}
	if err := w.prepare(w.audit, c.before, c.after); err != nil {
		return err
	}
	identities := make(map[prefix]uint32, len(c.Addresses.Put))
	for p, number := range c.Addresses.Put {
		identities[encodePrefix(p)] = number
	}
	if err := putAll(t.identities, identities); err != nil {
		return err
	}
	if err := w.switchSets(c.Endpoints); err != nil {
		return err
	}
	if join != nil {
		if err := join(c.want.Endpoints); err != nil {
			return err
		}
	}
	if err := w.prepare(w.audit, c.after); err != nil {
		return err
	}
	// Programs must not read a deleted row: its memory may be another row's a moment later.
	if err := w.Objects.NodeState.Invalidate(); err != nil {
		return err
	}
	if len(c.Addresses.Delete)+len(c.Verdicts.Delete)+len(c.Ports.Delete) > 0 {
		w.Objects.WaitForPrograms()
	}
	gone := make([]prefix, len(c.Addresses.Delete))
	for i, p := range c.Addresses.Delete {
		gone[i] = encodePrefix(p)
	}
	return errors.Join(deleteAll(t.identities, gone), deleteAll(t.verdicts, c.Verdicts.Delete),
		deleteAll(t.ports, c.Ports.Delete), deleteAll(t.numbers, c.Numbers.Delete), w.Objects.NodeState.Invalidate())
}

func (w *writer) switchSets(c policy.Change[netip.Addr, policy.Sets]) error {
	to := maps.Clone(c.Put)
	for _, a := range c.Delete {
		to[a] = policy.Sets{}
	}
	for a, sets := range to {
		row, ok, err := w.Objects.Endpoints.Get(rows.EncodeAddr(a))
		if ok && (row.Egress != sets.Egress || row.Ingress != sets.Ingress) {
			row.Egress, row.Ingress = sets.Egress, sets.Ingress
			err = w.Objects.Endpoints.Put(rows.EncodeAddr(a), row)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// prepare updates the part that programs read first: the lengths of all prefixes of some states. One write switches
// over. Between two states, audited policies stay audited: they cause no drops before they are enforced or deleted.
func (w *writer) prepare(audit bool, states ...summary) error {
	next := settings{}
	if audit {
		next.Audit = 1
	}
	for bits := 127; bits >= 0; bits-- {
		if slices.ContainsFunc(states, func(s summary) bool { return s.lengths[bits] }) {
			next.Lengths[next.Count] = uint8(bits)
			next.Count++
		}
	}
	now, err := w.Objects.NodeState.PoliciesInForce()
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(states, func(s summary) bool { return s.inForce }) {
		if now == 0 {
			return nil
		}
		return w.Objects.NodeState.EnforcePolicies(0)
	}
	t := w.tables().settings
	row := uint32(0)
	if now != 0 {
		row = uint32(now - 1)
		have, _, err := t.Get(row)
		if len(states) > 1 {
			next.Audit |= have.Audit
		}
		if err != nil || have == next {
			return err
		}
		row = 1 - row
	}
	return errors.Join(t.Put(row, next), w.Objects.NodeState.EnforcePolicies(uint64(row)+1),
		w.Objects.NodeState.Invalidate())
}

func encodePrefix(p netip.Prefix) prefix { return prefix{p.Addr().As16(), uint32(p.Bits())} }

const batch = 4096 // how many rows one system call writes

func putAll[K comparable, V any](t *objects.Table[K, V], rows map[K]V) error {
	keys, values := make([]K, 0, len(rows)), make([]V, 0, len(rows))
	for k, v := range rows {
		keys, values = append(keys, k), append(values, v)
	}
	for len(keys) > 0 {
		n := min(batch, len(keys))
		if _, err := t.PutBatch(keys[:n], values[:n]); err != nil {
			return err
		}
		keys, values = keys[n:], values[n:]
	}
	return nil
}

func deleteAll[K comparable, V any](t *objects.Table[K, V], gone []K) error {
	for chunk := range slices.Chunk(gone, batch) {
		if err := t.DeleteBatch(chunk); err != nil {
			return fmt.Errorf("delete rows of policies: %w", err)
		}
	}
	return nil
}
