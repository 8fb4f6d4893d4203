// SPDX-License-Identifier: Apache-2.0

package nodenet

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"mustang/internal/rtnl"
)

// nowhere is the device of a route that refuses packets.
const nowhere = -1

// encrypt plans to reach other nodes by WireGuard alone. Behind each route is one that refuses packets: without the
// first one, they would leave by the default route, in plain text. Of two nodes with one key, the older one has it.
func (p *plan) encrypt(self Node, others []Node) {
	p.encrypted, p.addresses = true, rtnl.Addrs(self.Ranges)
	for _, r := range self.Ranges { // packets to a pod that is gone
		p.routes = append(p.routes, route{dst: r, device: nowhere})
	}
	owners := map[wgtypes.Key]string{}
	if own, err := wgtypes.ParseKey(self.Key); err == nil {
		owners[own] = self.Name
	}
	for _, n := range slices.SortedFunc(slices.Values(others), older) {
		far := peer{node: n.Name, underlay: ofFamily(n.Addresses, p.local), ranges: n.Ranges}
		key, err := wgtypes.ParseKey(n.Key)
		far.key = key
		why := ""
		switch owner, taken := owners[key]; {
		case len(n.Ranges) == 0:
			continue
		case n.Key == "":
			why = "its agent has not published a WireGuard key (is --encrypt=on missing there?)"
		case err != nil:
			why = fmt.Sprintf("its WireGuard key %q is not 32 bytes in base64", n.Key)
		case taken:
			why = "its WireGuard key is the key of node " + owner
		case !p.local.IsValid() || !far.underlay.IsValid():
			why = fmt.Sprintf("WireGuard needs IPv4 addresses, or IPv6 addresses of all nodes; the node has %v, this node %v",
				n.Addresses, self.Addresses)
		default:
			p.peers = append(p.peers, far)
			owners[key] = n.Name
		}
		if why != "" {
			p.refused = append(p.refused, &NodeError{n.Name, why + ": no packet is sent to its pods", n.Key == "" || err != nil})
		}
		for _, r := range n.Ranges {
			p.routes = append(p.routes, route{dst: r, device: nowhere})
			if why == "" {
				p.routes = append(p.routes, route{dst: r})
			}
		}
	}
}

// inspectEncrypted is Inspect for a plan with WireGuard.
func (n *Network) inspectEncrypted(h host, want plan) (ways []Way, err error) {
	device, err := h.wireguard()
	if err != nil {
		return nil, err
	}
	have, err := h.routes()
	if err != nil {
		return nil, err
	}
	d, err := readWireGuard(n.Host)
	if err != nil {
		return nil, err
	}
	there := peersOf(d)
	for _, p := range want.peers {
		lacks := p.lacks(there, n.Encryption.Port)
		for _, r := range p.ranges {
			w := Way{Node: p.node, Range: r, Via: fmt.Sprint("wireguard via ", p.underlay)}
			err := lacks
			for _, at := range []int{device.index, nowhere} {
				if _, ok := have[route{r, netip.Addr{}, at}]; !ok {
					err = errors.Join(err, errors.New("no route"))
				}
			}
			if w.There = err == nil; !w.There {
				w.Lacks = err.Error()
			}
			ways = append(ways, w)
		}
	}
	return ways, nil
}

// shut plans an unreachable route for each range that other nodes claim and do not get. A range with addresses of
// sound nodes goes to closed instead. shut leaves out what the host, its pods or Services have, and ranges within a
// range that has an unreachable route.
func (p *plan) shut(self Node, claimed, sound []Node, has Host) {
	taken := slices.Concat(has.Local, self.Ranges)
	for _, a := range slices.Concat(has.Reserved, has.ClusterIPs) {
		taken = append(taken, single(a))
	}
	planned := map[netip.Prefix]bool{}
	for _, r := range p.routes {
		planned[r.dst] = true
	}
	for _, n := range claimed {
		for _, r := range n.Ranges {
			covers := func(have route) bool { return have.dst.Bits() <= r.Bits() && have.dst.Overlaps(r) }
			if planned[r] || slices.ContainsFunc(p.routes, covers) || refuseRange(r, taken, nil, nil) != "" {
				continue
			}
			before := len(p.open)
			for _, n := range sound {
				for _, a := range n.Addresses {
					if r.Contains(a) {
						p.open = append(p.open, single(a))
					}
				}
			}
			if len(p.open) > before {
				p.closed = append(p.closed, r)
			} else {
				p.routes = append(p.routes, route{dst: r, device: nowhere})
			}
		}
	}
}

// plain drops packets that claim to be from pods of other nodes to pods of this node, and do not come by WireGuard; and
// packets that claim to be from pods of this node, and do not come by their devices.
func (f firewall) plain() (rules [][]expr.Any) {
	for _, p := range f.own {
		rules = append(rules, slices.Concat(family(p.Addr()), onDevice(expr.MetaKeyIIFNAME, expr.CmpOpNeq), source(p.Addr()),
			inFar(p.Addr()), destination(p.Addr()), within(expr.CmpOpEq, p),
			verdict(&expr.Verdict{Kind: expr.VerdictDrop})),
			slices.Concat(family(p.Addr()), source(p.Addr()), within(expr.CmpOpEq, p), []expr.Any{
				&expr.Fib{Register: 1, ResultOIF: true, FlagSADDR: true, FlagIIF: true},
				&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: make([]byte, 4)},
			}, verdict(&expr.Verdict{Kind: expr.VerdictDrop})))
	}
	return rules
}

// sealed drops packets to pods of other nodes that would leave in plain text, by routes that are not the agent's.
func (f firewall) sealed() (rules [][]expr.Any) {
	for _, of := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		rules = append(rules, slices.Concat(family(of), onDevice(expr.MetaKeyOIFNAME, expr.CmpOpNeq), destination(of),
			inFar(of), verdict(&expr.Verdict{Kind: expr.VerdictDrop})))
	}
	return rules
}

// inFar matches destinations in pod ranges of other nodes, except addresses of nodes.
func inFar(of netip.Addr) []expr.Any {
	if of.Is6() {
		return append([]expr.Any{&expr.Lookup{SourceRegister: 1, SetName: far6}}, notIn(open6)...)
	}
	return append([]expr.Any{&expr.Lookup{SourceRegister: 1, SetName: far4}}, notIn(open4)...)
}

// foreign gives packets into WireGuard an address of the device as source, unless they are from this node's pods: the
// other node takes no others. They are from clients outside, and from the node's own processes.
func (f firewall) foreign() (rules [][]expr.Any) {
	for _, is4 := range []bool{true, false} {
		var rule []expr.Any
		for _, p := range f.own {
			if p.Addr().Is4() == is4 {
				rule = slices.Concat(rule, source(p.Addr()), within(expr.CmpOpNeq, p))
			}
		}
		if rule != nil {
			of := netip.IPv6Unspecified()
			if is4 {
				of = netip.IPv4Unspecified()
			}
			rules = append(rules, slices.Concat(family(of), onDevice(expr.MetaKeyOIFNAME, expr.CmpOpEq), rule,
				verdict(&expr.Masq{FullyRandom: true})))
		}
	}
	return rules
}

// onDevice compares the device that a packet comes in by, or leaves by, with the WireGuard device.
func onDevice(key expr.MetaKey, op expr.CmpOp) []expr.Any {
	name := make([]byte, unix.IFNAMSIZ)
	copy(name, WireGuardName)
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: op, Register: 1, Data: name}}
}
