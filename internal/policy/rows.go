// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"mustang/internal/service"
)

// Rows are the input of a datapath's decisions. All numbers are in Numbers; 0 stands for none.
type Rows struct {
	// Addresses has the identity of each prefix, in the form of 16 bytes (IPv4 v4-mapped). The longest match counts; an
	// address without a match has identity 0.
	Addresses map[netip.Prefix]uint32
	// Endpoints has the rule sets of the addresses of this node's pods, in the form of 16 bytes. Without a rule set, all
	// traffic in that direction is allowed.
	Endpoints map[netip.Addr]Sets
	// Verdicts has a row for identity 0 of each rule set, for all identities without a row of their own.
	Verdicts map[VerdictKey]Verdict
	// Ports has the exceptions to verdicts in tables of ports. The longest match counts.
	Ports map[PortKey]PortVerdict
	// Numbers has the number of each identity, rule set, table of ports and rule, by its digest.
	Numbers map[Digest]uint32
}

// Digest identifies a numbered object: the first 16 bytes of a SHA-256.
type Digest [16]byte

// Sets are the rule sets of an endpoint.
type Sets struct{ Egress, Ingress uint32 }

// VerdictKey is a rule set and the identity of the peer.
type VerdictKey struct{ Set, Identity uint32 }

// Verdict decides unless the table of ports has a row for the flow. Like the types below, it is laid out as a row of
// its map (bpf/mustang/policy.h).
type Verdict struct {
	Rule    uint32
	Ports   uint32 // table of ports, 0: none
	Lengths uint32 // a bit for each length of a prefix in that table
	Allow   bool
	_       [3]byte
}

// PortKey is a table of ports, a protocol, and the leading bits of a port: the others are 0.
type PortKey struct {
	Table    uint32
	Port     uint16
	Protocol service.Protocol
	Bits     uint8 // 0 to 16
}

// PortVerdict decides about some ports.
type PortVerdict struct {
	Rule  uint32
	Allow bool
	_     [3]byte
}

func mapped(a netip.Addr) netip.Addr { return netip.AddrFrom16(a.As16()) }

func mappedPrefix(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4() {
		return netip.PrefixFrom(mapped(p.Addr()), p.Bits()+96)
	}
	return p
}

// Changes turn one set of rows into another. They are safe when written in the order of the fields, first all puts: a
// row exists before others refer to it, and an address gets its identity before a rule set of an endpoint uses it. Then
// deletions follow in the reverse order.
type Changes struct {
	Numbers   Change[Digest, uint32]
	Ports     Change[PortKey, PortVerdict]
	Verdicts  Change[VerdictKey, Verdict]
	Addresses Change[netip.Prefix, uint32]
	Endpoints Change[netip.Addr, Sets]
}

// Change lists the rows to write to one map, and to delete.
type Change[K comparable, V any] struct {
	Put    map[K]V
	Delete []K
}

// Diff returns the changes that turn have into want.
func Diff(have, want Rows) Changes {
	return Changes{
		change(have.Numbers, want.Numbers), change(have.Ports, want.Ports),
		change(have.Verdicts, want.Verdicts), change(have.Addresses, want.Addresses), change(have.Endpoints, want.Endpoints),
	}
}

// Len returns the number of rows to write.
func (c *Changes) Len() int {
	return c.Numbers.len() + c.Ports.len() + c.Verdicts.len() + c.Addresses.len() + c.Endpoints.len()
}

func (c *Change[K, V]) len() int { return len(c.Put) + len(c.Delete) }

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

// Origin is the policy, rule or default behind a decision. The zero value means that no policy decides: all is allowed.
type Origin struct {
	Reason          Reason
	Tier            Tier
	Namespace, Name string // of the policy
	Direction       Direction
	Index           int // of the rule in its direction
}

// Reason is the kind of an origin.
type Reason uint8

// The reasons.
const (
	Default     Reason = iota
	ByRule             // a rule of a policy
	DefaultDeny        // the policy isolates the pod, and no policy has a rule for the traffic
	ToItself           // a pod always reaches itself
	OwnNode            // a pod and its node reach each other, but for tier Admin and policies that judge the node
)

// String returns a readable line.
func (o Origin) String() string {
	policy := "NetworkPolicy " + o.Namespace + "/" + o.Name
	if o.Tier != Namespaced {
		policy = fmt.Sprintf("ClusterNetworkPolicy %s (%s)", o.Name, o.Tier)
	}
	switch {
	case o.Reason == ByRule:
		return fmt.Sprintf("%s, rule %s[%d]", policy, o.Direction, o.Index)
	case o.Reason == DefaultDeny:
		return fmt.Sprintf("%s, default deny of %s", policy, o.Direction)
	case o.Reason == ToItself:
		return "a pod always reaches itself"
	case o.Reason == OwnNode:
		return "a pod and its node reach each other"
	case o.Name != "":
		return policy
	}
	return "default: no policy decides"
}

// Rule returns the rule that made the decision; nil if no rule did, or the policy is another one.
func (o Origin) Rule(of *Policy) *Rule {
	rules, _ := of.rules(o.Direction)
	if o.Reason != ByRule || of.Tier != o.Tier || of.Namespace != o.Namespace || of.Name != o.Name ||
		o.Index >= len(rules) {
		return nil
	}
	return &rules[o.Index]
}

// digest identifies a rule by its place, so that a change of a policy leaves the numbers of the others.
func (o Origin) digest() Digest {
	f := newForm("rule")
	f.bytes(byte(o.Reason), byte(o.Tier), byte(o.Direction))
	*f = binary.BigEndian.AppendUint32(*f, uint32(o.Index))
	*f = append(append(append(*f, o.Namespace...), 0), o.Name...)
	return f.digest()
}

func (p *Policy) origin() Origin { return Origin{Tier: p.Tier, Namespace: p.Namespace, Name: p.Name} }

// String returns the kind, namespace and name.
func (p Policy) String() string { return p.origin().String() }

// Rules returns the origins of the numbers of a snapshot's rules, as far as they have numbers.
func (s *Snapshot) Rules(numbers map[Digest]uint32) map[uint32]Origin {
	rules := map[uint32]Origin{}
	note := func(o Origin) {
		if n, ok := numbers[o.digest()]; ok {
			rules[n] = o
		}
	}
	note(Origin{Reason: OwnNode})
	for i := range s.Policies {
		o := s.Policies[i].origin()
		for _, o.Direction = range []Direction{Egress, Ingress} {
			o.Reason, o.Index = DefaultDeny, 0
			note(o)
			o.Reason = ByRule
			all, _ := s.Policies[i].rules(o.Direction)
			for o.Index = range all {
				note(o)
			}
		}
	}
	return rules
}
