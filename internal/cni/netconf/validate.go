// SPDX-License-Identifier: Apache-2.0

package netconf

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/utils"

	"mustang/internal/ipam"
	"mustang/internal/podlink"
	"mustang/internal/suggest"
)

// Values of key sourceGuard.
const guardOn, guardOff = "on", "off"

// The range of key connections, the same as of objects.Sizes.
const minConnections, maxConnections = 1 << 10, 1 << 24

// Parse parses and validates a network configuration. Unknown keys and invalid values are errors of type *types.Error
// that name the key. With an error it returns all valid values, so that DEL can proceed; Name is then valid or empty.
func Parse(data []byte) (Config, error) {
	c := Config{Link: LinkAuto, OVSDB: DefaultOVSDB, BigTCP: BigTCPAuto, Services: ServicesSocket, Policies: policiesAuto,
		Raw: data}
	keys, d := document{Config: &c, SourceGuard: guardOn, DefaultRoute: true}, &decoder{}
	all := d.keys("", data)
	d.fields("", all, reflect.ValueOf(&keys).Elem())
	// The name becomes a part of paths. The library that checks the name takes any of the keys "name", "Name" and "NAME".
	if err := utils.ValidateNetworkName(c.Name); err != nil {
		d.fail(Invalidf("name: %s %q", err.Msg, c.Name))
		c.Name = ""
	}
	c.SourceGuard, c.NoDefaultRoute = keys.SourceGuard != guardOff, !keys.DefaultRoute
	c.IPAM = d.ipam(keys.IPAM)
	c.Runtime = keys.Runtime.decode(d)
	args := d.labels(keys.Args)
	d.unknown("", all)
	if d.err == nil {
		d.err = c.validate(keys)
	}
	if d.err == nil {
		if len(args) > 0 && c.Labels == nil {
			c.Labels = map[string]string{}
		}
		maps.Copy(c.Labels, args)
		d.err = checkLabels("args.cni.labels", args)
	}
	return c, d.err
}

func (c *Config) validate(keys document) error {
	for _, word := range []struct {
		key, value string
		known      []string
	}{
		{"services", c.Services, Services()}, {"bigTCP", c.BigTCP, []string{BigTCPAuto, BigTCPOn, BigTCPOff}},
		{"sourceGuard", keys.SourceGuard, []string{guardOn, guardOff}},
		{"policies", c.Policies, []string{policiesAuto, policiesOn, policiesOff, PoliciesAgent}},
	} {
		if !slices.Contains(word.known, word.value) {
			return Invalidf("%s: want one of %s, got %q", word.key, strings.Join(word.known, ", "), word.value)
		}
	}
	switch {
	case !slices.Contains(Links(), c.Link):
		return Invalidf("link: unknown link mode %q (known: %s)%s", c.Link, strings.Join(Links(), ", "),
			suggest.Text(c.Link, Links()))
	case c.MTU < 0 || c.MTU > 65535:
		return Invalidf("mtu: %d is not between 0 and 65535", c.MTU)
	case c.Connections != 0 && (c.Connections < minConnections || c.Connections > maxConnections):
		return Invalidf("connections: %d is not between %d and %d, and not 0 (by memory)", c.Connections, minConnections,
			maxConnections)
	case !strings.HasPrefix(c.OVSDB, "/"):
		return Invalidf("ovsdb: want an absolute path, got %q", c.OVSDB)
	case !c.SourceGuard && len(keys.Allowed) > 0:
		return Invalidf("allowedAddresses: without sourceGuard pods send from any address")
	}
	for _, device := range [][2]string{{"parent", c.Parent}, {"bridge", c.Bridge}} {
		if len(device[1]) > 15 || strings.ContainsAny(device[1], "/: \t\n%") {
			return Invalidf("%s: invalid device name %q", device[0], device[1])
		}
	}
	validateLink := c.validateIPAM
	if c.Chained {
		validateLink = c.validateChained
	}
	for _, validate := range []func() error{
		func() error { return c.setAllowed(keys.Allowed) }, validateLink, c.validateHostAddresses, c.validatePolicies,
		c.validateRoutes,
	} {
		if err := validate(); err != nil {
			return err
		}
	}
	return nil
}

func (c *Config) setAllowed(allowed []string) error {
	for _, text := range allowed {
		prefix, err := netip.ParsePrefix(text)
		if addr, addrErr := netip.ParseAddr(text); addrErr == nil {
			prefix, err = netip.PrefixFrom(addr, addr.BitLen()), nil
		}
		addr := prefix.Addr()
		if err != nil || prefix != prefix.Masked() || addr.Is4In6() || addr.Zone() != "" ||
			prefix.Bits() > 0 && (addr.IsMulticast() || addr.IsLoopback() || addr.IsUnspecified()) {
			return Invalidf("allowedAddresses: want an address of hosts, or a prefix of such without host bits, got %q", text)
		}
		c.AllowedAddresses = append(c.AllowedAddresses, prefix)
	}
	return nil
}

func (c Config) validateChained() error {
	switch {
	case c.IPAM.Type != "":
		return Invalidf("ipam: a chained plugin assigns no addresses")
	case c.Link != LinkAuto:
		return Invalidf("link: a chained plugin creates no link, got %q", c.Link)
	case c.Masquerade:
		return Invalidf("masquerade: not supported in a chained plugin; configure it in the plugin that creates the link")
	case c.BigTCP != BigTCPAuto:
		return Invalidf("bigTCP: a chained plugin creates no device, got %q", c.BigTCP)
	case c.HostAddresses != nil:
		return Invalidf("hostAddresses: a chained plugin assigns the host no addresses")
	case c.NoDefaultRoute:
		return Invalidf("defaultRoute: a chained plugin adds no routes")
	case c.Services == ServicesOff && len(c.Runtime.Ports) == 0:
		return Invalidf("services: a chained plugin without services does nothing")
	}
	return nil
}

func (c Config) validateIPAM() error {
	if c.IPAM.Type == "" {
		return Invalidf("ipam.type: missing: want %q, or the name of another IPAM plugin", IPAMType)
	}
	if c.IPAM.BuiltIn() {
		if err := ipam.Validate(c.IPAM.Sets); err != nil {
			return Invalidf("ipam.ranges%v", err)
		}
	}
	switch {
	case c.IPAM.NeedsDevice() && !c.traits().DHCP:
		return Invalidf("link: ipam.type %s does not work with link %s: pods cannot reach a DHCP server (supported: %s)",
			DHCPType, c.Link, strings.Join(linksWith(func(t podlink.Traits) bool { return t.DHCP }), ", "))
	case c.IPAM.NeedsDevice() && !slices.ContainsFunc(c.HostAddresses, netip.Addr.Is4):
		return Invalidf("hostAddresses: missing: with ipam.type %s the gateway is another router, and the host needs its "+
			"own IPv4 address in the pod network", DHCPType)
	}
	return nil
}

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
		return Invalidf("hostAddresses: ipam.ranges%v", err)
	}
	return nil
}

// exclude excludes a host address, which must be a usable address of a subnet, and not the gateway.
func (i IPAM) exclude(addr netip.Addr) error {
	for _, set := range i.Sets {
		first := set[0].WithDefaults()
		if !first.Subnet.Contains(addr) {
			continue
		}
		if !ipam.Usable(first.Subnet, addr) || addr == first.Gateway {
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

// validateRoutes checks the routes against the ranges. With link auto, ADD repeats the check.
func (c Config) validateRoutes() error {
	if len(c.IPAM.Routes) == 0 {
		return nil
	}
	var subnets []PodAddress
	var addresses []netip.Addr
	for _, set := range c.IPAM.Sets {
		first := set[0].WithDefaults()
		subnets = append(subnets, PodAddress{first.Subnet, first.Gateway})
		addresses = append(addresses, first.Subnet.Addr())
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

// PodAddress is an address of a pod.
type PodAddress struct {
	netip.Prefix            // with the length of the subnet
	Gateway      netip.Addr // of the subnet; invalid if there is none
}

// HostPrefixes returns the host's own addresses in the subnets of a pod's addresses, and the gateways that are other
// routers (see [Config.HostAddresses]).
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

// Links returns the values of key link: LinkAuto, and each link mode that needs no process to carry packets.
func Links() []string {
	return append([]string{LinkAuto}, linksWith(func(podlink.Traits) bool { return true })...)
}

func linksWith(accept func(podlink.Traits) bool) (names []string) {
	for _, mode := range podlink.Modes() {
		if t := mode.Traits(); t.Needs != podlink.NeedsRelay && accept(t) {
			names = append(names, mode.Name())
		}
	}
	return names
}

// traits returns the traits of the link mode; zero with [LinkAuto].
func (c Config) traits() podlink.Traits {
	if mode, err := podlink.Lookup(c.Link); err == nil {
		return mode.Traits()
	}
	return podlink.Traits{}
}

// AutoLinks returns the link modes that [LinkAuto] chooses from, in the order of preference.
func AutoLinks() (names []string) {
	for _, mode := range autoModes() {
		names = append(names, mode.Name())
	}
	return names
}

// CheckProxied returns an error if services are off, and pods of a node bypass the host: rules of kube-proxy would
// translate packets to a cluster IP, but never see the answer.
func CheckProxied(link, services string) error {
	if services != ServicesOff || !pastHost(link) {
		return nil
	}
	return fmt.Errorf("link %s with services off: pods of a node answer each other past the host, so cluster IPs of "+
		"kube-proxy fail between them", link)
}

// CheckEncrypted returns an error if packets of a pod bypass the host's routes, and thus the device that encrypts them.
func CheckEncrypted(link string) error {
	if pastHost(link) {
		return fmt.Errorf("link %s: packets of pods bypass the host's routes: choose veth, bridge, netkit or netkit-l2",
			link)
	}
	return nil
}

func pastHost(link string) bool {
	return slices.Contains(linksWith(func(t podlink.Traits) bool { return !t.Routed && !t.NetfilterCall }), link)
}

// Together reports whether pods of a network reach each other if they have these two link modes: they are the same, or
// the host routes for both.
func Together(a, b string) bool {
	routed := append([]string{LinkAuto}, linksWith(func(t podlink.Traits) bool { return t.Routed })...)
	return a == b || slices.Contains(routed, a) && slices.Contains(routed, b)
}

func autoModes() []podlink.Mode {
	modes := slices.DeleteFunc(podlink.Modes(), func(m podlink.Mode) bool { return m.Traits().AutoRank == 0 })
	slices.SortFunc(modes, func(a, b podlink.Mode) int { return cmp.Compare(a.Traits().AutoRank, b.Traits().AutoRank) })
	return modes
}

// SelectLink returns the first of [AutoLinks] that the running kernel supports. It requires root.
func SelectLink() (string, error) {
	var errs []error
	for _, mode := range autoModes() {
		err := mode.Probe()
		if err == nil {
			return mode.Name(), nil
		}
		if unsupported := (*podlink.UnsupportedError)(nil); !errors.As(err, &unsupported) {
			return "", fmt.Errorf("link auto: %w", err) // the other modes would fail alike
		}
		errs = append(errs, err)
	}
	return "", fmt.Errorf("link auto: %w", errors.Join(errs...))
}
