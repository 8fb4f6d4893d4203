// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net/netip"
	"slices"
)

// move is a prefix that has another identity than before. nil: none.
type move struct {
	at       netip.Prefix
	was, now *identity
}

// identify gives prefixes, and those whose blocks have changed, the identities that they have now, and these their rows in the rule sets that there are.
func (c *Compiler) identify(touched map[netip.Prefix]bool) {
	c.blocks.touched(c.prefixes, touched)
	moves, fresh, gone := c.move(touched)
	c.decideFresh(fresh)
	c.inherit(moves)
	c.forget(gone)
	for _, i := range fresh {
		i.fresh = false
	}
}

// move gives prefixes their identities. Of these, it returns those that come and those that go, which have their rows still.
func (c *Compiler) move(touched map[netip.Prefix]bool) (moves []move, fresh, gone []*identity) {
	found := map[netip.Prefix]*cover{}
	for p := range touched {
		host := c.hosts[p]
		m := move{at: p, was: c.prefixes[p]}
		there := host != nil || c.blocks.begins(p)
		if in := c.blocks.of(p, found); there && (host != nil || in != nil) {
			var isFresh bool
			if m.now, isFresh = c.identity(host, in); isFresh {
				fresh = append(fresh, m.now)
			}
			m.now.prefixes++
		}
		if m.was != nil {
			if m.was.prefixes--; m.was.prefixes == 0 {
				gone = append(gone, m.was)
			}
		}
		if m.was != m.now {
			moves = append(moves, m)
		}
		switch {
		case m.now != nil:
			c.prefixes[p] = m.now
			c.place(p, m.now)
		case there:
			c.prefixes[p] = nil
			c.addresses.put(mappedPrefix(p), 0)
		default:
			delete(c.prefixes, p)
			c.addresses.remove(mappedPrefix(p))
		}
	}
	back := func(i *identity) bool { return i.prefixes > 0 }
	return moves, slices.DeleteFunc(fresh, func(i *identity) bool { return !back(i) }), slices.DeleteFunc(gone, back)
}

// identity returns the identity of a pod or node, or nil, whose address is in the blocks of a cover, or in none, and whether it is fresh.
func (c *Compiler) identity(host *content, in *cover) (i *identity, fresh bool) {
	f, from := newForm("identity"), uint32(0)
	if host != nil {
		f.bytes(host.id[:]...)
		if host.ownNode {
			from = ownNodes
		}
	}
	f.number(uint64(from))
	if in != nil {
		f.bytes(in.id[:]...)
	}
	id := f.digest()
	if i = c.identities[id]; i != nil {
		return i, false
	}
	i = &identity{content: host, in: in, id: id, fresh: true}
	i.number, _ = c.numbers.acquireFrom(id, from)
	c.identities[id] = i
	if in != nil {
		in.identities[i] = struct{}{}
	}
	if host != nil {
		host.identities[i] = struct{}{}
	}
	return i, true
}

// place writes the row of a prefix.
func (c *Compiler) place(p netip.Prefix, i *identity) {
	number := i.number
	if i.content != nil && i.kind == aPod && p.Addr().Is6() && p.Addr().IsLinkLocalUnicast() {
		number |= onLink
	}
	c.addresses.put(mappedPrefix(p), number)
}

// inherit gives identities that are fresh, and have rows, the numbers and the rows of those that go, where their addresses are the same and no rule set
// tells the two apart. So rules that describe peers in other words, or that name ranges around them, cost no row of what stays as it was.
func (c *Compiler) inherit(moves []move) {
	for _, m := range moves {
		if m.was != nil && m.now == nil { // until its row goes, the number is what it was to rule sets that come
			m.was.lost = true
		}
	}
	for _, m := range moves {
		if m.was != nil && m.now != nil && m.now.fresh && m.was.prefixes == 0 && !m.was.lost && c.sameRows(m.was, m.now) {
			m.now.fresh, m.was.lost = false, true
			c.forgetRows(m.now)
			c.numbers.move(m.was.id, m.now.id)
			m.now.number, m.was.number = m.was.number, 0
		}
	}
	for _, m := range moves {
		if m.now != nil {
			c.place(m.at, m.now)
		}
	}
}

// sameRows reports whether two identities have the same rows in all rule sets.
func (c *Compiler) sameRows(a, b *identity) bool {
	n := c.rowsOf[a.number]
	if (a.number >= ownNodes) != (b.number >= ownNodes) || n != c.rowsOf[b.number] {
		return false
	}
	for _, set := range c.sets {
		if n == 0 {
			return true
		}
		x, inX := c.verdicts.rows[VerdictKey{set.number, a.number}]
		y, inY := c.verdicts.rows[VerdictKey{set.number, b.number}]
		if inX != inY || x != y {
			return false
		}
		if inX {
			n--
		}
	}
	return true
}
