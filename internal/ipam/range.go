// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// Range is the part of a subnet from Start to End. Never reserved are gateways, the prefixes of Exclude, the network and
// the broadcast address of an IPv4 subnet, and the first address of an IPv6 subnet, the subnet-router anycast address
// (RFC 4291, 2.6.1). Subnets of two addresses have none of these but the gateway (RFC 3021, RFC 6164).
type Range struct {
	Subnet     netip.Prefix
	Start, End netip.Addr     // zero: the first and the last usable address of Subnet
	Gateway    netip.Addr     // zero: the first usable address of Subnet; can be outside of it, such as fe80::1
	Exclude    []netip.Prefix // not reserved, by any range of the same configuration
}

// RangeSet is one or more ranges of one family. A pod gets one address from each set.
type RangeSet []Range

// String returns the subnet, with Start and End if they are set: "10.1.0.10-10.1.0.20 of 10.1.0.0/24".
func (r Range) String() string {
	if !r.Start.IsValid() && !r.End.IsValid() {
		return r.Subnet.String()
	}
	r = r.withDefaults()
	return fmt.Sprintf("%s-%s of %s", r.Start, r.End, r.Subnet)
}

// String lists the ranges.
func (set RangeSet) String() string {
	names := make([]string, len(set))
	for i, r := range set {
		names[i] = r.String()
	}
	return strings.Join(names, ", ")
}

// Validate checks the range. The error names the range and the invalid value.
func (r Range) Validate() error {
	if !r.Subnet.IsValid() {
		return errors.New("a range lacks a subnet")
	}
	if err := r.validate(); err != nil {
		return fmt.Errorf("range %s: %w", r, err)
	}
	return nil
}

func (r Range) validate() error {
	if r.Subnet.Addr().Is4In6() {
		return fmt.Errorf("want the IPv4 subnet %s without ::ffff", r.Subnet)
	}
	if first := r.Subnet.Masked(); first != r.Subnet {
		return fmt.Errorf("the subnet %s has host bits set; want %s", r.Subnet, first)
	}
	r = r.withDefaults()
	for _, bound := range []struct {
		name string
		addr netip.Addr
	}{{"start", r.Start}, {"end", r.End}} {
		if !r.Subnet.Contains(bound.addr) {
			return fmt.Errorf("the %s %s is not in %s", bound.name, bound.addr, r.Subnet)
		}
	}
	if r.End.Less(r.Start) {
		return fmt.Errorf("the start %s is after the end %s", r.Start, r.End)
	}
	if r.Gateway.Is4() != r.Subnet.Addr().Is4() || r.Gateway.Is4In6() || r.Gateway.Zone() != "" {
		return fmt.Errorf("the gateway %s is not an address of the family of %s", r.Gateway, r.Subnet)
	}
	for _, p := range r.Exclude {
		if !p.IsValid() || !p.Overlaps(r.Subnet) {
			return fmt.Errorf("the exclusion %s is not in %s", p, r.Subnet)
		}
	}
	if len(r.intervals(merge(r.excluded()))) == 0 {
		return errors.New("no address is left")
	}
	return nil
}

// Validate checks each range, and the ranges together: no two ranges of a configuration overlap, and a set is of one
// family. The error names the ranges.
func Validate(sets []RangeSet) error {
	_, err := preparePools(sets, nil)
	return err
}

// withDefaults sets the zero values of a range with a valid subnet.
func (r Range) withDefaults() Range {
	all := usable(r.Subnet)
	if !r.Start.IsValid() {
		r.Start = all.first
	}
	if !r.End.IsValid() {
		r.End = all.last
	}
	if !r.Gateway.IsValid() {
		r.Gateway = all.first
	}
	return r
}

// bounds returns all addresses from start to end.
func (r Range) bounds() interval {
	r = r.withDefaults()
	return interval{r.Start, r.End}
}

// intervals returns the usable addresses of a range with defaults outside of the excluded intervals, which are merged.
func (r Range) intervals(excluded []interval) []interval {
	all := usable(r.Subnet)
	if r.Start.Less(all.first) {
		r.Start = all.first
	}
	if all.last.Less(r.End) {
		r.End = all.last
	}
	if r.End.Less(r.Start) {
		return nil
	}
	return interval{r.Start, r.End}.without(excluded)
}

// excluded returns the gateway and the excluded prefixes of a range with defaults.
func (r Range) excluded() []interval {
	out := []interval{{r.Gateway, r.Gateway}}
	for _, p := range r.Exclude {
		out = append(out, intervalOf(p))
	}
	return out
}
