// SPDX-License-Identifier: Apache-2.0

package policy

import (
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
	// Rules maps the numbers of rules in verdicts to origins; it is in no map. Rule 0 is the default.
	Rules map[uint32]Origin
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

// mapped returns an address in the form of 16 bytes.
func mapped(a netip.Addr) netip.Addr { return netip.AddrFrom16(a.As16()) }

// mappedPrefix returns a prefix in the form of 16 bytes.
func mappedPrefix(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4() {
		return netip.PrefixFrom(mapped(p.Addr()), p.Bits()+96)
	}
	return p
}
