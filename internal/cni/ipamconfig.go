// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"encoding/json"
	"net/netip"

	"mustang/internal/ipam"
	"mustang/internal/podlink"
)

// IPAMType is the type of the addresses that are built in. Any other is the name
// of a plugin that is asked for them.
const IPAMType = "mustang"

// IPAM says where addresses come from.
type IPAM struct {
	// Type is [IPAMType], or the name of an IPAM plugin.
	Type string
	// Daemon is the socket of the daemon that asks for addresses, where that is a plugin's way.
	Daemon string
	// Sets are the ranges of the addresses that are built in: a pod gets an address of each.
	Sets []ipam.RangeSet
	// Routes are those that the addresses that are built in come with.
	Routes []podlink.Route
}

func (i IPAM) builtIn() bool { return i.Type == IPAMType }

// parseIPAM reads key ipam. What another plugin is to be told is not looked at.
func parseIPAM(raw json.RawMessage) (out IPAM, err error) {
	o := parseObject("ipam", raw)
	if o.err != nil {
		return out, o.err
	}
	o.read("type", "a string", &out.Type)
	if out.asks() {
		out.Daemon = defaultDHCPDaemon
		o.read("daemonSocketPath", "the path of a socket", &out.Daemon)
	}
	if o.err != nil || !out.builtIn() {
		return out, o.err
	}
	var sets []json.RawMessage
	o.read("ranges", "an array of arrays of ranges", &sets)
	for i, raw := range sets {
		set, err := parseSet(o, i, raw)
		if err != nil {
			return out, err
		}
		out.Sets = append(out.Sets, set)
	}
	out.Routes = parseRoutes(o)
	if err := o.finish(); err != nil {
		return out, err
	}
	return out, out.validate()
}

// parseSet reads one set of ranges.
func parseSet(o *object, index int, raw json.RawMessage) (set ipam.RangeSet, err error) {
	wrapped := &object{path: o.path, fields: map[string]json.RawMessage{indexed("ranges", index): raw}}
	wrapped.each(indexed("ranges", index), func(r *object) {
		var out ipam.Range
		r.read("subnet", "a prefix like 10.88.0.0/16", &out.Subnet)
		r.read("rangeStart", "an address", &out.Start)
		r.read("rangeEnd", "an address", &out.End)
		r.read("gateway", "an address", &out.Gateway)
		r.read("exclude", "an array of prefixes", &out.Exclude)
		if r.err == nil {
			if err := out.Validate(); err != nil {
				r.err = invalid("%s", r.at("%v", err))
			}
		}
		set = append(set, out)
	})
	return set, wrapped.err
}

// validate judges the ranges together: a network has one prefix of each family.
func (i IPAM) validate() error {
	if len(i.Sets) == 0 {
		return invalid("ipam.ranges: want at least one set of ranges")
	}
	seen := map[bool]bool{}
	for n, set := range i.Sets {
		if len(set) == 0 {
			return invalid("ipam.ranges[%d]: want at least one range", n)
		}
		first := set[0]
		for _, r := range set {
			if r.Subnet != first.Subnet || gatewayOf(r) != gatewayOf(first) {
				return invalid("ipam.ranges[%d]: all ranges of a set have one subnet and one gateway, but there are %v (%v) and %v (%v)",
					n, first.Subnet, gatewayOf(first), r.Subnet, gatewayOf(r))
			}
		}
		v4 := first.Subnet.Addr().Is4()
		if seen[v4] {
			return invalid("ipam.ranges[%d]: %v is the second set of its family", n, first.Subnet)
		}
		seen[v4] = true
	}
	if err := ipam.Validate(i.Sets); err != nil {
		return invalid("ipam.ranges: %v", err)
	}
	return nil
}

// gatewayOf is the gateway of a range, its subnet's first address if none is given.
func gatewayOf(r ipam.Range) netip.Addr {
	if r.Gateway.IsValid() {
		return r.Gateway
	}
	return r.Subnet.Masked().Addr().Next()
}
