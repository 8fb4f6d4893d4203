// SPDX-License-Identifier: Apache-2.0

package policy

import "net/netip"

// Changes turn one set of rows into another. They hold when written in the order of the fields, first all that is put: a
// row is there before another refers to it, and an address gets its identity before its endpoint gets a rule set that
// knows it. Then what goes is deleted in the reverse order.
type Changes struct {
	Numbers   Change[Digest, uint32]
	Rules     Change[uint32, Origin]
	Ports     Change[PortKey, PortVerdict]
	Verdicts  Change[VerdictKey, Verdict]
	Addresses Change[netip.Prefix, uint32]
	Endpoints Change[netip.Addr, Sets]
	// InPlace is the digest of a rule set of which the one row of Verdicts switches all pods over. It goes before the row is written, and
	// programs that look at the row have to end before others are.
	InPlace Digest
}

// Change is what to write to one map.
type Change[K comparable, V any] struct {
	Put    map[K]V
	Delete []K
}

// Diff returns the changes that turn have into want.
func Diff(have, want Rows) Changes {
	return Changes{
		change(have.Numbers, want.Numbers), change(have.Rules, want.Rules), change(have.Ports, want.Ports),
		change(have.Verdicts, want.Verdicts), change(have.Addresses, want.Addresses), change(have.Endpoints, want.Endpoints), Digest{},
	}
}

// Len returns the number of rows to write.
func (c *Changes) Len() int {
	return c.Numbers.len() + c.Rules.len() + c.Ports.len() + c.Verdicts.len() + c.Addresses.len() + c.Endpoints.len()
}

func (c Change[K, V]) len() int { return len(c.Put) + len(c.Delete) }

func change[K, V comparable](have, want map[K]V) Change[K, V] {
	c := Change[K, V]{Put: map[K]V{}}
	for k, v := range want {
		if had, ok := have[k]; !ok || had != v {
			c.Put[k] = v
		}
	}
	for k := range have {
		if _, ok := want[k]; !ok {
			c.Delete = append(c.Delete, k)
		}
	}
	return c
}
