// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// Range is where addresses come from: the part of a subnet from Start to End. Never given out are gateways, what Exclude
// holds, the network and the broadcast address of an IPv4 subnet, and the first address of an IPv6 subnet, which is any
// router's (RFC 4291, 2.6.1). Subnets of two addresses have none of these but the gateway (RFC 3021, RFC 6164).
type Range struct {
	Subnet     netip.Prefix
	Start, End netip.Addr     // zero: the first and the last usable address of Subnet
	Gateway    netip.Addr     // zero: the first usable address of Subnet; may be outside of it, such as fe80::1
	Exclude    []netip.Prefix // not given out, by any range of the same configuration
}

// RangeSet is one or several ranges of one family. A pod gets one address out of each set.
type RangeSet []Range

// String is the subnet, with start and end where they were chosen: "10.1.0.10-10.1.0.20 of 10.1.0.0/24".
func (r Range) String() string {
	if !r.Start.IsValid() && !r.End.IsValid() {
		return r.Subnet.String()
	}
	full := r.filled()
	return fmt.Sprintf("%s-%s of %s", full.Start, full.End, r.Subnet)
}

// String lists the ranges.
func (set RangeSet) String() string {
	names := make([]string, len(set))
	for i, r := range set {
		names[i] = r.String()
	}
	return strings.Join(names, ", ")
}

// Validate says what is wrong with the range by itself. The error names the range and the part of it that is at fault.
func (r Range) Validate() error {
	if !r.Subnet.IsValid() {
		return errors.New("a range has no subnet")
	}
	if err := r.validate(); err != nil {
		return fmt.Errorf("range %s: %w", r, err)
	}
	return nil
}

func (r Range) validate() error {
	if r.Subnet.Addr().Is4In6() {
		return fmt.Errorf("write the IPv4 subnet %s without ::ffff", r.Subnet)
	}
	if first := r.Subnet.Masked(); first != r.Subnet {
		return fmt.Errorf("the subnet %s has host bits set; want %s", r.Subnet, first)
	}
	full := r.filled()
	for _, bound := range []struct {
		name string
		addr netip.Addr
	}{{"start", full.Start}, {"end", full.End}} {
		if !r.Subnet.Contains(bound.addr) {
			return fmt.Errorf("the %s %s is not in %s", bound.name, bound.addr, r.Subnet)
		}
	}
	if full.End.Less(full.Start) {
		return fmt.Errorf("the start %s is behind the end %s", full.Start, full.End)
	}
	if full.Gateway.Is4() != r.Subnet.Addr().Is4() || full.Gateway.Is4In6() || full.Gateway.Zone() != "" {
		return fmt.Errorf("the gateway %s is no plain address of the family of %s", full.Gateway, r.Subnet)
	}
	for _, out := range r.Exclude {
		if !out.IsValid() || !out.Overlaps(r.Subnet) {
			return fmt.Errorf("the exclusion %s is not in %s", out, r.Subnet)
		}
	}
	if len(full.spans(full.holes())) == 0 {
		return errors.New("no address is left to give out")
	}
	return nil
}

// Validate says what is wrong with the sets: with one of their ranges, or with two of them together. Ranges of one
// configuration must not overlap, and a set is of one family. The error names the ranges.
func Validate(sets []RangeSet) error {
	_, err := plan(sets, nil)
	return err
}

// filled is the range with what was left out. Its subnet must be valid.
func (r Range) filled() Range {
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

// spans is what a filled range gives out, but for the holes.
func (r Range) spans(holes []span) []span {
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
	left := []span{{r.Start, r.End}}
	for _, hole := range holes {
		left = without(left, hole)
	}
	return left
}

// holes is what a filled range says that nobody may be given.
func (r Range) holes() []span {
	holes := []span{{r.Gateway, r.Gateway}}
	for _, out := range r.Exclude {
		holes = append(holes, whole(out))
	}
	return holes
}
