// SPDX-License-Identifier: Apache-2.0

package netconf

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"mustang/internal/ipam"
	"mustang/internal/podlink"
)

// Values of ipam.type with a meaning of their own. Any other value is the name of an IPAM plugin, which ADD runs.
const (
	// IPAMType selects the built-in address management of package ipam.
	IPAMType = "mustang"
	// DHCPType is the DHCP plugin of containernetworking. It requests addresses through
	// the pod's device, so the device exists before the pod has addresses.
	DHCPType = "dhcp"
)

// defaultDHCPDaemon is the socket of the DHCP plugin's daemon by default.
const defaultDHCPDaemon = "/run/cni/dhcp.sock"

// Limits of a configuration, which bound the time of validation.
const (
	maxRanges   = 256  // in a range set
	maxExcludes = 1024 // in a range
	maxRoutes   = 1024
)

// IPAM configures address management.
type IPAM struct {
	// Type is [IPAMType], or the name of an IPAM plugin.
	Type string
	// Daemon is the socket of the DHCP plugin's daemon; empty for other types.
	Daemon string
	// Sets are the ranges of the built-in address management: a pod gets an address from each set.
	Sets []ipam.RangeSet
	// Routes are the additional routes of the built-in address management.
	Routes []podlink.Route
}

// BuiltIn reports whether the type is [IPAMType].
func (i IPAM) BuiltIn() bool { return i.Type == IPAMType }

// NeedsDevice reports whether the pod's device must exist before the pod has addresses.
func (i IPAM) NeedsDevice() bool { return i.Type == DHCPType }

// parseIPAM parses key ipam. Keys for another plugin are not validated.
func parseIPAM(raw json.RawMessage) (out IPAM, err error) {
	o := parseObject("ipam", raw)
	if o.err != nil {
		return out, o.err
	}
	o.read("type", "a string", &out.Type)
	if out.NeedsDevice() {
		out.Daemon = defaultDHCPDaemon
		o.read("daemonSocketPath", "the path of a socket", &out.Daemon)
	}
	if o.err != nil || !out.BuiltIn() {
		return out, o.err
	}
	var sets []json.RawMessage
	o.read("ranges", "an array of arrays of ranges", &sets)
	for i, raw := range sets {
		name := fmt.Sprintf("ranges[%d]", i)
		o.fields[name] = raw
		out.Sets = append(out.Sets, parseRangeSet(o, name))
	}
	out.Routes = parseRoutes(o)
	if err := o.finish(); err != nil {
		return out, err
	}
	return out, out.validate()
}

func parseRangeSet(o *object, name string) (set ipam.RangeSet) {
	o.readEach(name, maxRanges, func(r *object) {
		var out ipam.Range
		r.read("subnet", "a prefix like 10.88.0.0/16", &out.Subnet)
		r.read("rangeStart", "an address", &out.Start)
		r.read("rangeEnd", "an address", &out.End)
		r.read("gateway", "an address", &out.Gateway)
		r.read("exclude", "an array of prefixes", &out.Exclude)
		if len(out.Exclude) > maxExcludes && r.err == nil {
			r.err = Invalidf("%s: %d elements, want %d at most", r.key("exclude"), len(out.Exclude), maxExcludes)
		}
		if r.err == nil {
			if err := out.Validate(); err != nil {
				r.err = Invalidf("%s", r.message("%v", err))
			}
		}
		set = append(set, out)
	})
	return set
}

// validate checks that there is one subnet with one gateway for each family.
func (i IPAM) validate() error {
	if len(i.Sets) == 0 {
		return Invalidf("ipam.ranges: want at least one set of ranges")
	}
	seen := map[bool]bool{}
	for n, set := range i.Sets {
		if len(set) == 0 {
			return Invalidf("ipam.ranges[%d]: want at least one range", n)
		}
		first := set[0]
		for _, r := range set {
			if r.Subnet != first.Subnet || gatewayOf(r) != gatewayOf(first) {
				return Invalidf("ipam.ranges[%d]: want one subnet and one gateway in all ranges of a set, got %v (%v) and %v (%v)",
					n, first.Subnet, gatewayOf(first), r.Subnet, gatewayOf(r))
			}
		}
		v4 := first.Subnet.Addr().Is4()
		if seen[v4] {
			return Invalidf("ipam.ranges[%d]: %v is the second set of its family", n, first.Subnet)
		}
		seen[v4] = true
	}
	if err := ipam.Validate(i.Sets); err != nil {
		return Invalidf("ipam.ranges: %v", err)
	}
	return nil
}

// gatewayOf returns the gateway of a range: the first address of the subnet by default.
func gatewayOf(r ipam.Range) netip.Addr {
	if r.Gateway.IsValid() {
		return r.Gateway
	}
	return r.Subnet.Masked().Addr().Next()
}

// validateDHCP checks that the link reaches a DHCP server, and that the host does not
// take the gateway address, which the server assigns to a router.
func (c Config) validateDHCP() error {
	if !c.traits().DHCP {
		return Invalidf("link: ipam.type %s does not work with link %s: pods cannot reach a DHCP server (supported: %s)",
			DHCPType, c.Link, strings.Join(linksWith(func(t podlink.Traits) bool { return t.DHCP }), ", "))
	}
	if !slices.ContainsFunc(c.HostAddresses, netip.Addr.Is4) {
		return Invalidf("hostAddresses: missing: with ipam.type %s the gateway is another router, and the host needs its "+
			"own IPv4 address in the pod network",
			DHCPType)
	}
	return nil
}

// validateHostAddresses checks key hostAddresses, and excludes the addresses from the ranges.
func (c Config) validateHostAddresses() error {
	if c.HostAddresses == nil {
		return nil
	}
	switch {
	case !c.traits().Switched:
		return Invalidf("hostAddresses: not supported with link %s: the host routes all traffic of pods and is their only "+
			"gateway (supported: %s)",
			c.Link, strings.Join(linksWith(func(t podlink.Traits) bool { return t.Switched }), ", "))
	case c.Masquerade:
		return Invalidf("masquerade: not supported with hostAddresses: traffic of pods leaves through another router, not " +
			"through the host")
	case len(c.HostAddresses) == 0:
		return Invalidf("hostAddresses: want one or two addresses, got none")
	}
	for i, addr := range c.HostAddresses {
		switch {
		case !addr.IsGlobalUnicast() || addr.Is4In6() || addr.Zone() != "":
			return Invalidf("hostAddresses[%d]: invalid host address %q", i, addr)
		case slices.ContainsFunc(c.HostAddresses[:i], sameFamily(addr)):
			return Invalidf("hostAddresses[%d]: %v is the second address of its family", i, addr)
		}
		if err := c.IPAM.exclude(addr); err != nil {
			return Invalidf("hostAddresses[%d]: %v", i, err)
		}
	}
	if err := ipam.Validate(c.IPAM.Sets); c.IPAM.BuiltIn() && err != nil {
		return Invalidf("hostAddresses: %v", err)
	}
	return nil
}

// exclude excludes a host address from the ranges. The address must be a usable address
// of one of the subnets, and not the gateway.
func (i IPAM) exclude(addr netip.Addr) error {
	for _, set := range i.Sets {
		first := set[0]
		if !first.Subnet.Contains(addr) {
			continue
		}
		only := ipam.Range{Subnet: first.Subnet, Start: addr, End: addr, Gateway: first.Gateway}
		if only.Validate() != nil {
			return fmt.Errorf("%v is the gateway, or not a usable address of %v", addr, first.Subnet)
		}
		set[0].Exclude = append(set[0].Exclude, netip.PrefixFrom(addr, addr.BitLen()))
		return nil
	}
	if i.BuiltIn() {
		return fmt.Errorf("%v is in no subnet of ipam.ranges", addr)
	}
	return nil
}

// PodAddress is an address of a pod.
type PodAddress struct {
	netip.Prefix            // with the length of the subnet
	Gateway      netip.Addr // of the subnet; invalid if there is none
}

// HostPrefixes returns the host's own addresses in the subnets of a pod's addresses, and
// the gateways that are other routers (see [Config.HostAddresses]).
func (c Config) HostPrefixes(pod []PodAddress) (host []netip.Prefix, routers []netip.Addr, err error) {
	for _, a := range pod {
		own, gateway := a.Gateway, a.Gateway
		if at := slices.IndexFunc(c.HostAddresses, sameFamily(a.Addr())); at >= 0 {
			own = c.HostAddresses[at]
			if own == a.Addr() || !a.Contains(own) && !a.IsSingleIP() {
				return nil, nil, Invalidf("hostAddresses: %v is the pod's address %v, or not in its subnet", own, a)
			}
			if gateway.IsValid() {
				routers = append(routers, gateway)
			}
		}
		if own.IsValid() {
			host = append(host, netip.PrefixFrom(own, a.Bits()))
		}
	}
	return host, routers, nil
}

func sameFamily(as netip.Addr) func(netip.Addr) bool {
	return func(addr netip.Addr) bool { return addr.Is4() == as.Is4() }
}

// parseRoutes parses key routes.
func parseRoutes(o *object) (routes []podlink.Route) {
	o.readEach("routes", maxRoutes, func(r *object) {
		var out podlink.Route
		r.read("dst", "a prefix like 10.9.0.0/16", &out.Dst)
		r.read("gw", "an address", &out.Via)
		r.read("mtu", "a number of bytes", &out.MTU)
		r.read("advmss", "a number of bytes", &out.AdvMSS)
		r.read("priority", "a number", &out.Priority)
		routes = append(routes, out)
	})
	return routes
}

// validateRoutes checks the routes against the ranges. With link auto, ADD repeats the
// check, since the mode decides which next hops are neighbors.
func (c Config) validateRoutes() error {
	if len(c.IPAM.Routes) == 0 {
		return nil
	}
	var subnets []PodAddress
	var addresses []netip.Addr
	for _, set := range c.IPAM.Sets {
		subnets = append(subnets, PodAddress{set[0].Subnet, gatewayOf(set[0])})
		addresses = append(addresses, set[0].Subnet.Addr())
	}
	if i := slices.IndexFunc(c.IPAM.Routes, podlink.Route.IsDefault); i >= 0 && c.NoDefaultRoute {
		return Invalidf("ipam.routes[%d].dst: %v is a default route, and defaultRoute is false", i, c.IPAM.Routes[i].Dst)
	}
	host, routers, err := c.HostPrefixes(subnets)
	if err != nil {
		return err
	}
	pod := podlink.Pod{Addresses: addresses, Routes: c.IPAM.Routes}
	switched := c.Link == LinkAuto || c.traits().Switched
	if err := pod.ValidateRoutes(podlink.Network{Gateways: host, Routers: routers, MTU: c.MTU}, switched); err != nil {
		return Invalidf("ipam.%v", err)
	}
	return nil
}
