// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"encoding/binary"
	"maps"
	"math/bits"
	"slices"

	"mustang/internal/service"
)

type span struct{ first, last int }

type segment struct {
	span
	PortVerdict
}

// flattener turns rules in their order into disjoint ranges of ports: each rule paints what no earlier one has.
type flattener struct {
	clauses  []*clause
	deny     uint32 // rule of the default deny
	isolated bool
}

const anyProtocol = service.Protocol(255)

func (f *flattener) flatten() (rest PortVerdict, others map[service.Protocol][]segment) {
	rest = f.paint(anyProtocol)[0].PortVerdict
	others = map[service.Protocol][]segment{}
	for _, q := range f.clauses {
		for _, p := range q.Ports {
			if _, ok := others[p.Protocol]; !ok {
				others[p.Protocol] = slices.DeleteFunc(f.paint(p.Protocol), func(s segment) bool { return s.PortVerdict == rest })
			}
		}
	}
	return rest, others
}

func (f *flattener) paint(protocol service.Protocol) []segment {
	var out []segment
	decide := func(spans []span, v PortVerdict) {
		for _, s := range spans {
			out = append(out, segment{s, v})
		}
	}
	open, n := []span{{0, 65535}}, 0
	for t := Admin; t <= Baseline; t++ {
		var passed []span
		for ; n < len(f.clauses) && f.clauses[n].tier == t; n++ {
			q := f.clauses[n]
			if taken := take(&open, q.spans(protocol)); q.Action == Pass {
				passed = append(passed, taken...)
			} else {
				decide(taken, PortVerdict{Allow: q.Action == Accept, Rule: q.number})
			}
		}
		open = append(open, passed...)
		slices.SortFunc(open, func(a, b span) int { return a.first - b.first })
		if t == Namespaced && f.isolated {
			decide(open, PortVerdict{Rule: f.deny})
			open = nil
		}
	}
	decide(open, PortVerdict{Allow: true})
	slices.SortFunc(out, func(a, b segment) int { return a.first - b.first })
	joined := out[:1]
	for _, s := range out[1:] {
		if at := &joined[len(joined)-1]; at.PortVerdict == s.PortVerdict {
			at.last = s.last
		} else {
			joined = append(joined, s)
		}
	}
	return joined
}

func (q *clause) spans(protocol service.Protocol) []span {
	if len(q.Ports) == 0 {
		return []span{{0, 65535}}
	}
	var out []span
	for _, p := range q.Ports {
		if p.Protocol == protocol {
			out = append(out, span{int(p.First), int(p.Last)})
		}
	}
	return out
}

func take(open *[]span, ranges []span) (taken []span) {
	for _, r := range ranges {
		from, _ := slices.BinarySearchFunc(*open, r.first, func(s span, first int) int { return s.last - first })
		to := from
		var left []span
		for ; to < len(*open) && (*open)[to].first <= r.last; to++ {
			s := (*open)[to]
			taken = append(taken, span{max(s.first, r.first), min(s.last, r.last)})
			if s.first < r.first {
				left = append(left, span{s.first, r.first - 1})
			}
			if s.last > r.last {
				left = append(left, span{r.last + 1, s.last})
			}
		}
		if to > from {
			*open = slices.Replace(*open, from, to, left...)
		}
	}
	return taken
}

// verdict returns the row of a verdict, and makes its table of ports if it needs one. Verdicts share equal tables.
func (c *compiler) verdict(rest PortVerdict, others map[service.Protocol][]segment) Verdict {
	var keys []PortKey
	var values []PortVerdict
	f := newForm("ports")
	for _, protocol := range slices.Sorted(maps.Keys(others)) {
		for _, s := range others[protocol] {
			for _, k := range prefixes(s.span) {
				k.Protocol = protocol
				keys, values = append(keys, k), append(values, s.PortVerdict)
				f.bytes(byte(protocol), k.Bits)
				f.flag(s.Allow)
				*f = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16(*f, k.Port), s.Rule)
			}
		}
	}
	v := Verdict{Allow: rest.Allow, Rule: rest.Rule}
	if len(keys) == 0 {
		return v
	}
	v.Ports = c.number(f.digest(), 0)
	c.tableSizes[v.Ports] = len(keys)
	for i := range keys {
		v.Lengths |= 1 << keys[i].Bits
		keys[i].Table = v.Ports
		c.rows.Ports[keys[i]] = values[i]
	}
	return v
}

func prefixes(s span) (out []PortKey) {
	for at := s.first; at <= s.last; {
		size := 1 << min(bits.TrailingZeros(uint(at)|1<<16), bits.Len(uint(s.last-at+1))-1)
		out = append(out, PortKey{Port: uint16(at), Bits: uint8(16 - bits.Len(uint(size)) + 1)})
		at += size
	}
	return out
}
