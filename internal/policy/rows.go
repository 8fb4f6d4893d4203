// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net/netip"

	"mustang/internal/service"
)

// Rows are what a datapath decides by. All numbers are those of Numbers, and 0 stands for none.
type Rows struct {
	// Addresses has the identity of each prefix, in the form of 16 bytes (IPv4 v4-mapped). The longest match counts, and
	// what has none has identity 0.
	Addresses map[netip.Prefix]uint32
	// Endpoints has the rule sets of the addresses of this node's pods, in the form of 16 bytes. Without a rule set, all
	// of that direction is allowed.
	Endpoints map[netip.Addr]Sets
	// Verdicts has a row for identity 0 of each rule set, which holds for all identities that have no row of their own.
	Verdicts map[VerdictKey]Verdict
	// Ports has what differs from the verdict in tables of ports. The longest match counts.
	Ports map[PortKey]PortVerdict
	// Rules tells what the numbers of rules in verdicts mean. Rule 0 is the default.
	Rules map[uint32]Origin
	// Numbers has the number of each identity, rule set, table of ports and rule, by a digest of what it is.
	Numbers map[Digest]uint32
}

// Digest identifies what has a number: the first 16 bytes of a SHA-256.
type Digest [16]byte

// Sets are the rule sets of an endpoint.
type Sets struct{ Egress, Ingress uint32 }

// VerdictKey is a rule set and the identity of the peer.
type VerdictKey struct{ Set, Identity uint32 }

// Verdict decides unless the table of ports has a row for the flow.
type Verdict struct {
	Allow bool
	Rule  uint32
	Ports uint32 // table of ports, 0: none
	// Lengths has a bit for each length of a prefix in that table.
	Lengths uint32
}

// PortKey is a table of ports, a protocol, and the leading bits of a port: the others are 0.
type PortKey struct {
	Table    uint32
	Protocol service.Protocol
	Port     uint16
	Bits     uint8 // 0 to 16
}

// PortVerdict decides about some ports.
type PortVerdict struct {
	Allow bool
	Rule  uint32
}

// Lookup decides as a datapath with these rows would: the endpoint's rule sets, the peer's identity, its verdict or
// that of identity 0, and the table of ports if the verdict has one. No step depends on the number of policies.
func (r *Rows) Lookup(f Flow) (egress, ingress Decision) {
	source, destination := mapped(f.Source), mapped(f.Destination)
	return r.lookup(r.Endpoints[source].Egress, source, destination, f),
		r.lookup(r.Endpoints[destination].Ingress, destination, source, f)
}

func (r *Rows) lookup(set uint32, endpoint, peer netip.Addr, f Flow) Decision {
	_, known := r.Endpoints[endpoint]
	switch {
	case known && endpoint == peer:
		return Decision{true, Origin{Reason: ToItself}}
	case set == 0:
		return Decision{Allow: true}
	}
	v, ok := r.Verdicts[VerdictKey{set, r.identity(peer)}]
	if !ok {
		v = r.Verdicts[VerdictKey{set, 0}]
	}
	if v.Ports != 0 {
		for bits := 16; bits >= 0; bits-- {
			port := f.Port &^ uint16(0xffff>>bits)
			if p, ok := r.Ports[PortKey{v.Ports, f.Protocol, port, uint8(bits)}]; ok {
				return Decision{p.Allow, r.Rules[p.Rule]}
			}
		}
	}
	return Decision{v.Allow, r.Rules[v.Rule]}
}

// identity returns that of the longest prefix, by a look at all of them: only tests ask.
func (r *Rows) identity(a netip.Addr) (identity uint32) {
	longest := -1
	for p, of := range r.Addresses {
		if p.Bits() > longest && p.Contains(a) {
			longest, identity = p.Bits(), of&^onLink
		}
	}
	return identity
}

// mapped returns an address in the form of 16 bytes.
func mapped(a netip.Addr) netip.Addr { return netip.AddrFrom16(a.As16()) }

// mappedPrefix returns a prefix in the form of 16 bytes.
func mappedPrefix(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4() {
		return netip.PrefixFrom(mapped(p.Addr()), p.Bits()+96)
	}
	return p
}
