// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
	"mustang/internal/policy"
	"mustang/internal/service"
)

// readRows reads the rows that there are. Those of rules are none.
func (p Policies) readRows() (policy.Rows, error) {
	have := policy.Rows{
		Addresses: map[netip.Prefix]uint32{}, Endpoints: map[netip.Addr]policy.Sets{},
		Verdicts: map[policy.VerdictKey]policy.Verdict{},
		Ports:    map[policy.PortKey]policy.PortVerdict{}, Rules: map[uint32]policy.Origin{},
	}
	t := p.tables()
	for row, err := range t.identities.All() {
		if err != nil {
			return have, err
		}
		have.Addresses[netip.PrefixFrom(netip.AddrFrom16(row.Key.Addr), int(row.Key.Length))] = row.Value
	}
	for row, err := range t.verdicts.All() {
		if err != nil {
			return have, err
		}
		have.Verdicts[policy.VerdictKey{Set: row.Key.Set, Identity: row.Key.Identity}] =
			policy.Verdict{Allow: row.Value.Allow != 0, Rule: row.Value.Rule, Ports: row.Value.Table, Lengths: row.Value.Lengths}
	}
	for row, err := range t.ports.All() {
		if err != nil {
			return have, err
		}
		key := policy.PortKey{Table: row.Key.Table, Protocol: service.Protocol(row.Key.Proto), Port: row.Key.Port,
			Bits: row.Key.Length}
		have.Ports[key] = policy.PortVerdict{Allow: row.Value.Allow != 0, Rule: row.Value.Rule}
	}
	numbers, err := t.numbers.Rows()
	if err != nil {
		return have, err
	}
	have.Numbers = numbers
	for row, err := range p.Objects.Endpoints.All() {
		if err != nil {
			return have, err
		}
		if sets := (policy.Sets{Egress: row.Value.Egress, Ingress: row.Value.Ingress}); sets != (policy.Sets{}) {
			have.Endpoints[netip.AddrFrom16(row.Key.Bytes)] = sets
		}
	}
	return have, nil
}

// writer brings rows from one state to another in steps. Before the last one, the rule sets of the policies of before
// are complete still, so that each verdict is theirs or that of the new ones.
type writer struct {
	Policies
	steps []step
	audit bool // in the end
}

// step is what to write, and what programs read first, before and after.
type step struct {
	policy.Changes
	want          policy.Rows
	before, after summary
}

// summary is what programs read first of some rows: the lengths of prefixes of addresses, and whether an endpoint has a
// rule set.
type summary struct {
	lengths [129]bool
	inForce bool
}

func summarize(r policy.Rows) (s summary) {
	for p := range r.Addresses {
		s.lengths[p.Bits()] = true
	}
	for _, sets := range r.Endpoints {
		s.inForce = s.inForce || sets != policy.Sets{}
	}
	return s
}

// plan compiles what files say, and checks that there is room. Nothing is written. Errors: those of policy.Steps,
// *objects.FullError.
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
		share := shareOfJoining
		if limits.Joins {
			share = 0
		}
		if err := p.require(s, countRows(steps[len(steps)-1]), share); err != nil {
			return nil, err
		}
	}
	for _, rows := range steps {
		none := func(_ netip.Addr, sets policy.Sets) bool { return sets == policy.Sets{} }
		maps.DeleteFunc(rows.Endpoints, none)
		each := step{policy.Diff(have, rows), rows, summarize(have), summarize(rows)}
		if err := p.fits(rows, each.Changes); err != nil {
			return nil, err
		}
		w.steps = append(w.steps, each)
		have = rows
	}
	return w, nil
}

// idle reports whether there is nothing to write.
func (w *writer) idle() bool {
	return !slices.ContainsFunc(w.steps, func(s step) bool { return s.Len() > len(s.Rules.Put)+len(s.Rules.Delete) })
}

// write writes the rows and returns their number. join writes the rows of joining endpoints, which are given their rule
// sets.
func (w *writer) write(join func(map[netip.Addr]policy.Sets) error) (n int, err error) {
	for i, s := range w.steps {
		then := join
		if i > 0 {
			then = nil
		}
		more, err := w.step(s, then)
		if n += more; err != nil {
			return n, err
		}
	}
	return n, nil
}

// step writes what differs between two states: what is referred to comes before what refers to it, and goes after it.
func (w *writer) step(c step, join func(map[netip.Addr]policy.Sets) error) (int, error) {
	c.Rules = policy.Change[uint32, policy.Origin]{}
	t := w.tables()
	if c.Len() == 0 && join == nil {
		return 0, w.prepare(w.audit, c.after)
	}
	if err := errors.Join(
		putAll(t.numbers, c.Numbers.Put, func(d policy.Digest, n uint32) (policy.Digest, uint32) { return d, n }),
		putAll(t.ports, c.Ports.Put, func(k policy.PortKey, v policy.PortVerdict) (portKey, portVerdict) {
			return encodePort(k), portVerdict{Rule: v.Rule, Allow: number(v.Allow)}
		}),
		putAll(t.verdicts, c.Verdicts.Put, func(k policy.VerdictKey, v policy.Verdict) (verdictKey, verdict) {
			return verdictKey{Set: k.Set, Identity: k.Identity}, verdict{Rule: v.Rule, Table: v.Ports, Lengths: v.Lengths,
				Allow: number(v.Allow)}
		}),
	); err != nil {
		return 0, err
	}
	if err := w.prepare(w.audit, c.before, c.after); err != nil {
		return 0, err
	}
	if err := putAll(t.identities, c.Addresses.Put, func(k netip.Prefix, v uint32) (prefix,
		uint32) {
		return encodePrefix(k), v
	}); err != nil {
		return 0, err
	}
	if err := w.switchSets(c.Endpoints, c.want.Endpoints, join); err != nil {
		return 0, err
	}
	if err := w.prepare(w.audit, c.after); err != nil {
		return 0, err
	}
	// Nobody reads a row that goes: its memory may be another row's a moment later.
	if err := w.Objects.NodeState.Invalidate(); err != nil {
		return 0, err
	}
	if len(c.Addresses.Delete)+len(c.Verdicts.Delete)+len(c.Ports.Delete) > 0 {
		w.Objects.WaitForPrograms()
	}
	return c.Len(), errors.Join(
		deleteAll(t.identities, c.Addresses.Delete, encodePrefix),
		deleteAll(t.verdicts, c.Verdicts.Delete, func(k policy.VerdictKey) verdictKey {
			return verdictKey{Set: k.Set, Identity: k.Identity}
		}),
		deleteAll(t.ports, c.Ports.Delete, encodePort),
		deleteAll(t.numbers, c.Numbers.Delete, func(d policy.Digest) policy.Digest { return d }),
		w.Objects.NodeState.Invalidate(),
	)
}

// switchSets gives endpoints other rule sets, each address by one write.
func (w *writer) switchSets(c policy.Change[netip.Addr, policy.Sets], want map[netip.Addr]policy.Sets,
	join func(map[netip.Addr]policy.Sets) error) error {
	put := func(a netip.Addr, sets policy.Sets) error {
		row, ok, err := w.Objects.Endpoints.Get(rows.EncodeAddr(a))
		if err != nil || !ok || row.Egress == sets.Egress && row.Ingress == sets.Ingress {
			return err
		}
		row.Egress, row.Ingress = sets.Egress, sets.Ingress
		return w.Objects.Endpoints.Put(rows.EncodeAddr(a), row)
	}
	for a, sets := range c.Put {
		if err := put(a, sets); err != nil {
			return err
		}
	}
	for _, a := range c.Delete {
		if err := put(a, policy.Sets{}); err != nil {
			return err
		}
	}
	if join == nil {
		return nil
	}
	return join(want)
}

// prepare brings what programs read first up to date: the lengths of all prefixes of some states. One write switches
// over. Between two states, policies that were audited still are: nothing that they deny is dropped before they are
// enforced, or gone.
func (w *writer) prepare(audit bool, states ...summary) error {
	next := settings{Audit: uint8(number(audit))}
	inForce := false
	for bits := 127; bits >= 0; bits-- {
		if slices.ContainsFunc(states, func(s summary) bool { return s.lengths[bits] }) {
			next.Lengths[next.Count] = uint8(bits)
			next.Count++
		}
	}
	for _, s := range states {
		inForce = inForce || s.inForce
	}
	now, err := w.Objects.NodeState.PoliciesInForce()
	if err != nil {
		return err
	}
	if !inForce {
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
	// audited or not
	return errors.Join(t.Put(row, next), w.Objects.NodeState.EnforcePolicies(uint64(row)+1),
		w.Objects.NodeState.Invalidate())
}

func encodePort(k policy.PortKey) portKey {
	return portKey{Table: k.Table, Port: k.Port, Proto: uint8(k.Protocol), Length: k.Bits}
}

func encodePrefix(p netip.Prefix) prefix {
	return prefix{p.Addr().As16(), uint32(p.Bits())}
}

func number(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

// batch is how many rows one system call writes.
const batch = 4096

func putAll[K, RK comparable, V, RV any](t *objects.Table[RK, RV], rows map[K]V, encode func(K, V) (RK, RV)) error {
	var keys []RK
	var values []RV
	for k, v := range rows {
		key, value := encode(k, v)
		keys, values = append(keys, key), append(values, value)
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

func deleteAll[K any, RK comparable, RV any](t *objects.Table[RK, RV], gone []K, encode func(K) RK) error {
	for chunk := range slices.Chunk(gone, batch) {
		keys := make([]RK, len(chunk))
		for i, k := range chunk {
			keys[i] = encode(k)
		}
		if err := t.DeleteBatch(keys); err != nil {
			return fmt.Errorf("delete rows of policies: %w", err)
		}
	}
	return nil
}
