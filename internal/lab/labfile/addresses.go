// SPDX-License-Identifier: Apache-2.0

package labfile

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

const firstPod = 10

// The plan of addresses has the same digits in IPv4 and in IPv6. All numbers are decimal.

// planned returns the gateways of a network of a host; hosts begin with 1, networks with 0.
func planned(host, network int) []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix(fmt.Sprintf("10.%d.%d.1/24", host, network)),
		netip.MustParsePrefix(fmt.Sprintf("fd00:%d:%d::1/64", host, network)),
	}
}

// plannedWire returns the addresses of an end of a wire; wires and ends begin with 1.
func plannedWire(wire, end int) []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix(fmt.Sprintf("10.0.%d.%d/24", wire, end)),
		netip.MustParsePrefix(fmt.Sprintf("fd00:0:%d::%d/64", wire, end)),
	}
}

// PodPrefixes are the ranges of the plan, one per address family.
func PodPrefixes() []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/16")}
}

func family(addr netip.Addr) int { return addr.BitLen() / 128 }

// given is an address that a file gives a pod; bits is -1 without a prefix.
type given struct {
	addr  netip.Addr
	bits  int
	field jsontext.Pointer
}

func (r *reader) parseGiven(field jsontext.Pointer, addresses texts) (out [2]given) {
	for _, text := range addresses {
		prefix, err := netip.ParsePrefix(text)
		bits := prefix.Bits()
		a := prefix.Addr()
		if err != nil {
			if a, err = netip.ParseAddr(text); err != nil {
				r.fail(field, "%q: want an IP address, such as 10.2.0.7 or 10.2.0.7/24", text)
				return out
			}
		}
		f := family(a)
		least, most := [2]int{8, 32}[f], [2]int{30, 126}[f]
		unusual := a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() || a.IsLinkLocalUnicast() ||
			a.Is4() && (a.As4()[0] == 0 || a.As4()[0] >= 240)
		r.require(a.Zone() == "" && !a.Is4In6(), field, "%q: want an address without zone, IPv4 in its own form", text)
		r.require(!unusual, field, "%q: no pod can have that address", text)
		r.require(bits < 0 || bits >= least && bits <= most, field, "%q: want a prefix of %d to %d bits", text, least, most)
		r.require(!out[f].addr.IsValid(), field, "%q is the second address of its family", text)
		if r.err == nil {
			out[f] = given{a, bits, field}
		}
	}
	return out
}

// assign gives the pods of a network their addresses: first the addresses in the file, whose prefix becomes the
// network's, then free ones.
func (r *reader) assign(host string, forms map[string]*podForm, n *Network) {
	from := at("hosts", host)
	all := make([][2]given, len(n.Pods))
	for i, p := range n.Pods {
		all[i] = r.parseGiven(at("hosts", host, "pods", p.Name, "address"), forms[p.Name].Address)
	}
	for f := range n.Gateways {
		var set *given // the pod's address that has the network's prefix
		for i := range all {
			g := &all[i][f]
			if !g.addr.IsValid() || g.bits < 0 {
				continue
			}
			prefix := netip.PrefixFrom(g.addr, g.bits).Masked()
			r.require(set == nil || prefix == n.Gateways[f].Masked(), g.field,
				"%v: the pods of link %s on %s are in %v, by another address", g.addr, n.Link, host, n.Gateways[f].Masked())
			n.Gateways[f], set, from = netip.PrefixFrom(prefix.Addr().Next(), g.bits), g, g.field
		}
		gateway := n.Gateways[f]
		taken := map[netip.Addr]string{gateway.Addr(): "the host"}
		for i, p := range n.Pods {
			g := all[i][f]
			if !g.addr.IsValid() {
				continue
			}
			by := taken[g.addr]
			r.require(gateway.Contains(g.addr), g.field, "%v is not in %v, the network of link %s on %s: name another by "+
				"%[1]v/BITS", g.addr, gateway.Masked(), n.Link, host)
			r.require(by == "", g.field, "%v is the address of %s", g.addr, by)
			r.require(g.addr != gateway.Masked().Addr() && !IsBroadcast(gateway, g.addr), g.field,
				"%v is the address of all of %v", g.addr, gateway.Masked())
			taken[g.addr] = p.Name
		}
		for i := range n.Pods {
			p, addr := &n.Pods[i], all[i][f].addr
			if !addr.IsValid() {
				addr = free(gateway, taken)
				r.require(addr.IsValid(), at("hosts", host, "pods", p.Name),
					"no address is free in %v, the network of link %s on %s", gateway.Masked(), n.Link, host)
				taken[addr] = p.Name
			}
			p.Addresses = append(p.Addresses, addr)
		}
	}
	for _, gateway := range n.Gateways {
		r.owned = append(r.owned, owned{gateway.Masked(), "link " + n.Link + " on " + host, from})
	}
}

func free(gateway netip.Prefix, taken map[netip.Addr]string) netip.Addr {
	first := gateway.Addr()
	for range firstPod - 1 {
		first = first.Next()
	}
	for _, addr := range []netip.Addr{first, gateway.Addr().Next()} {
		for ; addr.IsValid() && gateway.Contains(addr) && !IsBroadcast(gateway, addr); addr = addr.Next() {
			if taken[addr] == "" {
				return addr
			}
		}
	}
	return netip.Addr{}
}

// IsBroadcast reports whether an address of a prefix is its last one, in IPv4.
func IsBroadcast(prefix netip.Prefix, addr netip.Addr) bool {
	return addr.Is4() && !prefix.Contains(addr.Next())
}

// ownAddresses gives a host addresses: the gateways of its first network, or the first ones of the plan.
func (r *reader) ownAddresses(h *Host, number int) {
	gateways := planned(number, 0)
	if len(h.Networks) > 0 {
		gateways = h.Networks[0].Gateways
	}
	for _, gateway := range gateways {
		h.Addresses = append(h.Addresses, gateway.Addr())
		if len(h.Networks) == 0 {
			r.owned = append(r.owned, owned{gateway.Masked(), h.Name, at("hosts", h.Name)})
		}
	}
}

type owned struct {
	prefix netip.Prefix
	by     string
	field  jsontext.Pointer // that asked for it
}

// checkOverlaps refuses ranges that overlap, which only addresses of the file can bring about.
func (r *reader) checkOverlaps() {
	slices.SortStableFunc(r.owned, func(a, b owned) int {
		return cmp.Or(a.prefix.Addr().Compare(b.prefix.Addr()), a.prefix.Bits()-b.prefix.Bits())
	})
	for i := 1; i < len(r.owned); i++ { // the first of several that overlap has its neighbour in the next
		a, b := r.owned[i-1], r.owned[i]
		if !a.prefix.Overlaps(b.prefix) {
			continue
		}
		if slices.Contains(slices.Collect(a.field.Tokens()), "address") {
			a, b = b, a
		}
		r.fail(b.field, "%v of %s overlaps %v of %s", b.prefix, b.by, a.prefix, a.by)
	}
}
