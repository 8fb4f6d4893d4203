// SPDX-License-Identifier: Apache-2.0

package nodenet

import (
	"crypto/sha256"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"mustang/internal/rtnl"
)

// Node is a node of a cluster.
type Node struct {
	Name string
	// Addresses are the addresses at which other nodes reach it, the preferred one of each family first.
	Addresses []netip.Addr
	Ranges    []netip.Prefix // the ranges of its pods
	Key       string         // the public key of its WireGuard device in base64; empty: none
	// Created and UID decide which of two nodes is older: Created is the object's time, UID decides within a second.
	Created time.Time
	UID     string
}

// Routing is how pods reach pods of other nodes.
type Routing string

// The kinds of routing.
const (
	// Auto is Native where two nodes are on one segment, and VXLAN elsewhere.
	Auto Routing = "auto"
	// Native sends packets as they are to the other node, which has to be on a segment of this one.
	Native Routing = "native"
	// VXLAN sends packets to the other node through a tunnel (RFC 7348).
	VXLAN Routing = "vxlan"
	// WireGuard encrypts packets to the other node. A node without a key is not reached. It needs Options.Encryption.
	WireGuard Routing = "wireguard"
	// Off leaves it to the network.
	Off Routing = "off"
)

// UnmarshalText parses a kind of routing.
func (r *Routing) UnmarshalText(text []byte) error {
	switch value := Routing(text); value {
	case Auto, Native, VXLAN, Off:
		*r = value
		return nil
	case WireGuard:
		return fmt.Errorf("routing %q: want --encrypt=on", text)
	}
	return fmt.Errorf("routing %q: want %s, %s, %s or %s", text, Auto, Native, VXLAN, Off)
}

// MarshalText returns the word.
func (r Routing) MarshalText() ([]byte, error) { return []byte(r), nil }

// NodeError names what of a node is left out, and the reason. Alike: all other nodes refuse it for the same reason.
type NodeError struct {
	Node, Text string
	Alike      bool
}

func (e *NodeError) Error() string { return "node " + e.Node + ": " + e.Text }

func refuse(node, format string, args ...any) error {
	return &NodeError{Node: node, Text: fmt.Sprintf(format, args...)}
}

type plan struct {
	// tunnel is whether it needs the VXLAN device, with these properties. Processes of the node reach pods of other nodes
	// from its addresses, so that answers return through the tunnel. If left is set, the tunnel stays as it is.
	tunnel    bool
	encrypted bool // whether it needs the WireGuard device, with the same properties
	left      bool
	local     netip.Addr
	mac       net.HardwareAddr
	addresses []netip.Addr
	mtu       int

	peers   []peer
	routes  []route
	closed  []netip.Prefix // refused ranges without a route: nftables drops packets to them, except to open
	open    []netip.Prefix
	refused []error // the errors about nodes that are not reached
}

// peer is another node at the end of the tunnel.
type peer struct {
	mac      net.HardwareAddr
	underlay netip.Addr
	hops     []netip.Addr // its addresses in the tunnel
	node     string
	key      wgtypes.Key // of WireGuard, with the ranges that it may send from
	ranges   []netip.Prefix
}

// route leads to a range of pods. A device of 0 is the tunnel's; nowhere: it refuses packets.
type route struct {
	dst    netip.Prefix
	via    netip.Addr
	device int
}

// newPlan returns what a node needs to reach valid others. segment returns the index of the device that reaches an
// address without a router; 0: none.
func newPlan(self Node, others []Node, routing Routing, segment func(netip.Addr) int) (p plan) {
	if routing == Off {
		return p
	}
	p.local = underlay(self, others)
	if routing == WireGuard {
		p.encrypt(self, others)
		return p
	}
	for _, n := range others {
		far := peer{mac: macOf(n.Name), underlay: ofFamily(n.Addresses, p.local)}
		for _, r := range n.Ranges {
			native := route{dst: r}
			if routing != VXLAN {
				native = nativeRoute(r, n, segment)
			}
			switch {
			case native.device != 0:
				p.routes = append(p.routes, native)
			case routing == Native:
				p.refused = append(p.refused, refuse(n.Name, "no address of %v is on a segment of this node: no route to %v",
					n.Addresses, r))
			case !p.local.IsValid() || !far.underlay.IsValid():
				p.refused = append(p.refused,
					refuse(n.Name, "the tunnel needs IPv4 addresses, or IPv6 addresses of all nodes; the node has %v, this node "+
						"%v: no route to %v",
						n.Addresses, self.Addresses, r))
			default:
				far.hops = append(far.hops, r.Addr())
				p.routes = append(p.routes, route{dst: r, via: r.Addr()})
			}
		}
		if far.hops != nil {
			p.peers = append(p.peers, far)
		}
	}
	if p.tunnel = p.peers != nil; p.tunnel {
		p.mac = macOf(self.Name)
		p.addresses = rtnl.Addrs(self.Ranges)
	}
	return p
}

// nativeRoute returns the route over a segment; device 0: none.
func nativeRoute(r netip.Prefix, n Node, segment func(netip.Addr) int) route {
	for _, a := range n.Addresses {
		if a.Is4() == r.Addr().Is4() {
			if device := segment(a); device != 0 {
				return route{r, a, device}
			}
		}
	}
	return route{dst: r}
}

// underlay returns the address of this node to which other nodes send packets of the tunnel; the zero value if it lacks
// one of the family. The device has one family, which all nodes must choose alike: IPv4, unless a node lacks IPv4 and
// all nodes have IPv6. So a node without IPv4 does not disconnect IPv4-only nodes.
func underlay(self Node, others []Node) netip.Addr {
	all := append(slices.Clone(others), self)
	lack := func(family netip.Addr) bool {
		return slices.ContainsFunc(all, func(n Node) bool {
			return len(n.Addresses) > 0 && !ofFamily(n.Addresses, family).IsValid()
		})
	}
	family := netip.IPv4Unspecified()
	if six := netip.IPv6Unspecified(); lack(family) && !lack(six) {
		family = six
	}
	return ofFamily(self.Addresses, family)
}

// ofFamily returns the first address of a family; the zero value if there is none.
func ofFamily(addresses []netip.Addr, family netip.Addr) netip.Addr {
	for _, a := range addresses {
		if family.IsValid() && a.Is4() == family.Is4() {
			return a
		}
	}
	return netip.Addr{}
}

// Overhead is VXLAN's overhead per packet in bytes: headers of Ethernet, VXLAN, UDP and IP.
func Overhead(underlay netip.Addr) int { return 22 + Headers(underlay) }

// sealed is WireGuard's overhead per packet in bytes: its header and tag, headers of UDP and IP.
func sealed(underlay netip.Addr) int { return 32 + Headers(underlay) }

// Headers is the size in bytes of the headers of UDP and IP.
func Headers(to netip.Addr) int {
	if to.Is6() {
		return 8 + 40
	}
	return 8 + 20
}

// overhead returns the overhead of a kind of routing per packet in bytes; with Auto of the tunnel.
func (r Routing) overhead(underlay netip.Addr) int {
	switch r {
	case Native, Off:
		return 0
	case WireGuard:
		return sealed(underlay)
	}
	return Overhead(underlay)
}

func macOf(name string) net.HardwareAddr {
	sum := sha256.Sum256([]byte(name))
	mac := net.HardwareAddr(sum[:6])
	mac[0] = mac[0]&^1 | 2 // unicast, locally administered
	return mac
}
