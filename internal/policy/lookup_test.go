// SPDX-License-Identifier: Apache-2.0

package policy

import "net/netip"

// Lookup decides like a datapath with these rows: the endpoint's rule sets, the peer's identity, its verdict or else
// the one of identity 0, and the table of ports if the verdict has one. No step depends on the number of policies.
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
			if p, ok := r.Ports[PortKey{v.Ports, port, f.Protocol, uint8(bits)}]; ok {
				return Decision{p.Allow, r.Rules[p.Rule]}
			}
		}
	}
	return Decision{v.Allow, r.Rules[v.Rule]}
}

// identity returns the identity of the longest prefix with a linear search, for tests only.
func (r *Rows) identity(a netip.Addr) (identity uint32) {
	longest := -1
	for p, of := range r.Addresses {
		if p.Bits() > longest && p.Contains(a) {
			longest, identity = p.Bits(), of&^onLink
		}
	}
	return identity
}
