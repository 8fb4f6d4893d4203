// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// Range is the part of a subnet from Start to End. Never reserved are gateways, the prefixes of Exclude, the network
// and the broadcast address of an IPv4 subnet, and the first address of an IPv6 subnet, the subnet-router anycast
// address (RFC 4291, 2.6.1). Subnets of two addresses have none of these but the gateway (RFC 3021, RFC 6164).
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

// Owner is the holder of addresses: an interface of a container.
type Owner struct {
	ContainerID string `json:"container"` // letters, digits, "_", "." and "-"; the first is a letter or digit
	IfName      string `json:"interface"` // a Linux device name: up to 15 bytes without "/", ":" and space
}

// String returns a text like "interface eth0 of container 3f2a9c".
func (o Owner) String() string { return "interface " + o.IfName + " of container " + o.ContainerID }

const (
	// separator separates the parts of a file's name. No address and no container ID contains it.
	separator = "@"
	// maxOwner is the length of an owner's names in bytes: a file's name has 255, of which an address takes 39.
	maxOwner = 200
	// alphanumeric has the first characters of container IDs.
	alphanumeric = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
)

// validate rejects names that the CNI specification does not allow, so that no file name leaves the directory.
func (o Owner) validate() error {
	switch {
	case o.ContainerID == "":
		return errors.New("empty container ID")
	case strings.Trim(o.ContainerID, alphanumeric+"_.-") != "" || !strings.Contains(alphanumeric, o.ContainerID[:1]):
		return fmt.Errorf("invalid container ID %q: want letters, digits, \"_\", \".\" and \"-\"", o.ContainerID)
	case o.IfName == "" || o.IfName == "." || o.IfName == ".." || len(o.IfName) > 15 ||
		strings.ContainsAny(o.IfName, "/: \t\n\v\f\r\x00"):
		return fmt.Errorf("invalid interface name %q", o.IfName)
	case len(o.ContainerID)+len(o.IfName) > maxOwner:
		return fmt.Errorf("container ID %q is longer than %d bytes", o.ContainerID, maxOwner-len(o.IfName))
	}
	return nil
}

// Lease is a reserved address with its subnet and gateway.
type Lease struct {
	Owner   Owner
	Address netip.Addr
	Subnet  netip.Prefix
	Gateway netip.Addr
}

// file returns the name of the lease's file.
func (l Lease) file() string {
	return strings.Join([]string{l.Address.String(), l.Owner.ContainerID, l.Owner.IfName}, separator)
}

// parseName returns the address and the owner that the name of a file has.
func parseName(file string) (l Lease, ok bool) {
	text, owner, _ := strings.Cut(file, separator)
	l.Address, _ = netip.ParseAddr(text)
	l.Owner.ContainerID, l.Owner.IfName, _ = strings.Cut(owner, separator)
	return l, l.Address.Zone() == "" && l.file() == file && l.Owner.validate() == nil
}

// read reads the subnet and the gateway of a lease, and reports whether the lease is of this boot.
func (s *Store) read(l *Lease) bool {
	data, _ := s.content(l.file())
	text, current := strings.CutPrefix(string(data), s.Boot+" ")
	if fields := strings.Fields(text); current && len(fields) == 2 {
		l.Subnet, _ = netip.ParsePrefix(fields[0])
		l.Gateway, _ = netip.ParseAddr(fields[1])
	}
	return current
}

func ownersOf(leases []Lease) map[netip.Addr]Owner {
	owners := make(map[netip.Addr]Owner, len(leases))
	for _, l := range leases {
		owners[l.Address] = l.Owner
	}
	return owners
}

// FullError reports a set without a free address.
type FullError struct {
	Ranges RangeSet
	InUse  int // number of addresses in use, all that the ranges have
}

func (e *FullError) Error() string {
	return fmt.Sprintf("no free address in %s: %d in use", e.Ranges, e.InUse)
}
