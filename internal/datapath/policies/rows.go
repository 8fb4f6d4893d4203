// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
	"mustang/internal/policy"
	"mustang/internal/service"
)

// readRows reads the rows that there are. Those of rules are none.
func (p Policies) readRows() (policy.Rows, error) {
	have := policy.Rows{
		Addresses: map[netip.Prefix]uint32{}, Endpoints: map[netip.Addr]policy.Sets{}, Verdicts: map[policy.VerdictKey]policy.Verdict{},
		Ports: map[policy.PortKey]policy.PortVerdict{}, Rules: map[uint32]policy.Origin{}, Numbers: map[policy.Digest]uint32{},
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
		if row.Key.Table >= ofListeners {
			continue
		}
		key := policy.PortKey{Table: row.Key.Table, Protocol: service.Protocol(row.Key.Proto), Port: row.Key.Port, Bits: row.Key.Length}
		have.Ports[key] = policy.PortVerdict{Allow: row.Value.Allow != 0, Rule: row.Value.Rule}
	}
	for row, err := range t.numbers.All() {
		if err != nil {
			return have, err
		}
		have.Numbers[row.Key] = row.Value
	}
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

// writer brings rows from one state to another in steps. Before the last one, the rule sets of the policies of before are
// complete still, so that each verdict is theirs or that of the new ones.
type writer struct {
	Policies
	compiler *policy.Compiler
	steps    []step
	joining  map[netip.Addr]uint32
	empty    bool // no policies are left in the end
	audit    bool // in the end
	all      bool // ports may be there that nobody needs who listens on them
}

// step is what to write, and what programs read first, before and after.
type step struct {
	policy.Changes
	before, after summary
	audit         bool // afterwards
}

// summary is what programs read first of some rows: the lengths of prefixes of addresses, and whether an endpoint has a rule set.
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

// plan compiles documents, and checks that all together are not too much work. Nothing is written. A compiler that has followed them is where
// it begins, and without one the rows that there are and the documents of before; rows may be behind these. The error may be a *policy.LimitError.
func (p Policies) plan(before, d documents, c *policy.Compiler, check bool) (*writer, error) {
	w := &writer{Policies: p, compiler: c, audit: d.audit()}
	s, err := p.snapshot(d)
	if err != nil {
		return nil, err
	}
	w.empty = len(s.Policies) == 0
	if c == nil {
		w.all = true
		have, err := p.readRows()
		if err != nil {
			return nil, err
		}
		w.compiler = policy.NewCompiler(have)
		if err := w.resume(before, d, s, check); err != nil {
			return nil, err
		}
		changes := policy.Diff(have, w.compiler.Rows())
		maps.DeleteFunc(changes.Endpoints.Put, func(a netip.Addr, sets policy.Sets) bool { return have.Endpoints[a] == sets }) // none
		audit := w.audit
		if !before.pending {
			audit = before.audit()
		}
		err = w.add(have, changes, audit)
		if err == nil && d.joining != nil {
			err = w.require(s, countRows(w.compiler.Rows()), 0)
		}
		if err != nil || before.pending {
			return w, err
		}
	}
	have := w.compiler.Rows()
	first := step{before: summarize(have), audit: w.audit}
	if first.Changes, err = w.compiler.Change(s); err != nil {
		return nil, err
	}
	first.after = summarize(have)
	w.steps = append(w.steps, first)
	if err := w.fits(first.Changes); err != nil || !check {
		return w, err
	}
	if err := w.compiler.Check(s); err != nil {
		return nil, err
	}
	return w, w.leaveRoom(s)
}

// snapshot assembles documents. Without policies, nothing is to be known.
func (p Policies) snapshot(d documents) (policy.Snapshot, error) {
	s, err := p.assemble(d)
	if err != nil || len(s.Policies)+len(s.Previous) == 0 {
		return policy.Snapshot{}, err
	}
	return s, p.addLinkLocal(&s)
}

// add adds a step from rows that there are to those of the compiler.
func (w *writer) add(have policy.Rows, c policy.Changes, audit bool) error {
	w.steps = append(w.steps, step{c, summarize(have), summarize(w.compiler.Rows()), audit})
	return w.fits(c)
}

// idle reports whether there is nothing to write.
func (w *writer) idle() bool {
	return !slices.ContainsFunc(w.steps, func(s step) bool { return s.Len() > len(s.Rules.Put)+len(s.Rules.Delete) })
}

// write writes the rows and returns their number. join writes the rows of joining endpoints, which are given their rule sets.
func (w *writer) write(join func(map[netip.Addr]policy.Sets) error) (n int, err error) {
	for i, s := range w.steps {
		then := join
		if i < len(w.steps)-1 {
			then = nil
		}
		more, err := w.step(s, then)
		if n += more; err != nil {
			return n, err
		}
	}
	ends := []func() (policy.Changes, error){func() (policy.Changes, error) { return w.compiler.Settle(), nil }}
	if w.empty {
		ends = append(ends, func() (policy.Changes, error) { return w.compiler.Change(policy.Snapshot{}) }, ends[0])
	}
	for _, end := range ends {
		more, err := w.end(end)
		if n += more; err != nil {
			return n, err
		}
	}
	if !w.all {
		return n, nil
	}
	return n, w.forgetListeners()
}

// end writes what a compiler changes after the steps.
func (w *writer) end(change func() (policy.Changes, error)) (n int, err error) {
	rows := w.compiler.Rows()
	s := step{before: summarize(rows), audit: w.audit}
	if s.Changes, err = change(); err != nil {
		return 0, err
	}
	s.after = summarize(rows)
	return w.step(s, nil)
}

// step writes what differs between two states: what is referred to comes before what refers to it, and goes after it.
func (w *writer) step(c step, join func(map[netip.Addr]policy.Sets) error) (int, error) {
	c.Rules = policy.Change[uint32, policy.Origin]{}
	w.all = w.all || len(c.Endpoints.Delete) > 0
	t := w.tables()
	if c.Len() == 0 && join == nil {
		return 0, w.prepare(c.audit, c.after)
	}
	if c.InPlace != (policy.Digest{}) { // a killed process leaves a set that nobody takes for what it was
		if err := t.numbers.Delete(c.InPlace); err != nil {
			return 0, err
		}
	}
	if err := errors.Join(
		w.noteListeners(c.Endpoints.Put),
		putAll(t.numbers, c.Numbers.Put, func(d policy.Digest, n uint32) ([16]byte, uint32) { return d, n }),
		putAll(t.ports, c.Ports.Put, func(k policy.PortKey, v policy.PortVerdict) (portKey, portVerdict) {
			return encodePort(k), portVerdict{Rule: v.Rule, Allow: number(v.Allow)}
		}),
		putAll(t.verdicts, c.Verdicts.Put, func(k policy.VerdictKey, v policy.Verdict) (verdictKey, verdict) {
			return verdictKey{Set: k.Set, Identity: k.Identity}, verdict{Rule: v.Rule, Table: v.Ports, Lengths: v.Lengths, Allow: number(v.Allow)}
		}),
	); err != nil {
		return 0, err
	}
	if err := w.prepare(c.audit, c.before, c.after); err != nil {
		return 0, err
	}
	if err := putAll(t.identities, c.Addresses.Put, func(k netip.Prefix, v uint32) (prefix, uint32) { return encodePrefix(k), v }); err != nil {
		return 0, err
	}
	if err := w.switchSets(c.Endpoints, w.compiler.Rows().Endpoints, join); err != nil {
		return 0, err
	}
	if err := w.prepare(c.audit, c.after); err != nil {
		return 0, err
	}
	// Nobody reads a row that goes: its memory may be another row's a moment later.
	if err := w.Objects.NodeState.Invalidate(); err != nil {
		return 0, err
	}
	if c.InPlace != (policy.Digest{}) || len(c.Addresses.Delete)+len(c.Verdicts.Delete)+len(c.Ports.Delete) > 0 {
		waitForPrograms()
	}
	return c.Len(), errors.Join(
		deleteAll(t.identities, c.Addresses.Delete, encodePrefix),
		deleteAll(t.verdicts, c.Verdicts.Delete, func(k policy.VerdictKey) verdictKey {
			return verdictKey{Set: k.Set, Identity: k.Identity}
		}),
		deleteAll(t.ports, c.Ports.Delete, encodePort),
		deleteAll(t.numbers, c.Numbers.Delete, func(d policy.Digest) [16]byte { return d }),
		w.Objects.NodeState.Invalidate(),
	)
}

// switchSets gives endpoints other rule sets, each address by one write.
func (w *writer) switchSets(c policy.Change[netip.Addr, policy.Sets], want map[netip.Addr]policy.Sets, join func(map[netip.Addr]policy.Sets) error) error {
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

// prepare brings what programs read first up to date: the lengths of all prefixes of some states. One write switches over. Between two
// states, policies that were audited still are: nothing that they deny is dropped before they are enforced, or gone.
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
	return errors.Join(t.Put(row, next), w.Objects.NodeState.EnforcePolicies(uint64(row)+1), w.Objects.NodeState.Invalidate()) // audited or not
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

func putAll[K comparable, V any, RK, RV any](t *objects.Table[RK, RV], rows map[K]V, encode func(K, V) (RK, RV)) error {
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

func deleteAll[K, RK, RV any](t *objects.Table[RK, RV], gone []K, encode func(K) RK) error {
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

// waitForPrograms returns when no program runs that read the maps before the call.
func waitForPrograms() {
	const membarrierGlobal = 1 // MEMBARRIER_CMD_GLOBAL, <linux/membarrier.h>
	_, _, _ = unix.Syscall(unix.SYS_MEMBARRIER, membarrierGlobal, 0, 0)
}
