// SPDX-License-Identifier: Apache-2.0

// Package nodenet joins the pod networks of a cluster's nodes by routes over a common segment, or a VXLAN or
// WireGuard device.
//
// All state is in the kernel. A [Network] reads it and writes differences. Its routes have a protocol number of their
// own, the VXLAN network an id, the nftables table a name. It touches nothing else.
package nodenet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
)

// DefaultPort is the UDP port of VXLAN (RFC 7348, section 5).
const DefaultPort = 4789

// Options configure a network.
type Options struct {
	Host    *netns.Namespace
	Routing Routing
	Port    uint16 // the UDP port of VXLAN, the same on all nodes; 0 is [DefaultPort]
	// Encryption is for WireGuard alone.
	Encryption Encryption
	// Masquerade translates the source of packets from the node's pods to an address of the node, unless the destination
	// is a pod of a node or in Kept.
	Masquerade bool
	Kept       []netip.Prefix
	// Reserved returns outside addresses that no node's pods can have, such as the API server's; nil: none.
	Reserved func() []netip.Addr
	// ClusterIPs returns the addresses of the cluster's Services, which a node or pod cannot have; nil: none.
	ClusterIPs func() []netip.Addr
	// Remotes gets the ways to pods of other nodes for programs that bypass the hosts' stacks, after each change; nil:
	// there are no such programs.
	Remotes func([]Remote) error
}

// Encryption is the private key of this node, and the UDP port of WireGuard, the same on all nodes.
type Encryption struct {
	Key  PrivateKey
	Port uint16
}

// Network connects a node with the pods of other nodes.
type Network struct {
	Options
	passed atomic.Pointer[[]Remote]              // the ways that Remotes got last without an error
	known  atomic.Pointer[map[wgtypes.Key]known] // the peers
}

// New returns a network. It changes nothing.
func New(o Options) *Network {
	if o.Port == 0 {
		o.Port = DefaultPort
	}
	return &Network{Options: o}
}

func (n *Network) open() (host, error) {
	conn := rtnl.In(n.Host)
	handle, err := conn.Handle()
	return host{handle, conn}, err
}

// Apply makes the routes of this node lead exactly to the pods of the other nodes. For each node that it cannot reach,
// it returns an error with the name, and continues.
func (n *Network) Apply(self Node, others []Node) error {
	return n.planned(self, others, func(h host, want plan, others []Node) error {
		errs := want.refused
		if err := h.shut(want); err != nil { // before the device, which takes longer
			errs = append(errs, err)
		}
		if want.tunnel || want.encrypted {
			base, err := h.underlay(want.local)
			if err == nil {
				want.mtu = base.MTU - n.Routing.overhead(want.local)
				err = n.setUpTunnel(h, want)
			}
			if err != nil {
				errs = append(errs, err)
				want.routes = slices.DeleteFunc(want.routes, func(r route) bool { return r.device == 0 })
				want.left = true
			}
		}
		errs = append(errs, newFirewall(want, self, others, n.Options).apply(n.Host), h.apply(want))
		return errors.Join(append(errs, n.passRemotes(h, want))...)
	})
}

func (n *Network) setUpTunnel(h host, want plan) error {
	if !want.encrypted {
		return h.setUpDevice(want, n.Port)
	}
	n.know(want.peers)
	return n.setUpWireGuard(h, want)
}

// planned calls do with the plan to reach the valid other nodes (see [Sound]). The plan has the errors about the rest.
func (n *Network) planned(self Node, others []Node, do func(h host, want plan, others []Node) error) error {
	h, err := n.open()
	if err != nil {
		return err
	}
	defer h.Close()
	has, err := n.has(h)
	if err != nil {
		return err
	}
	if n.Routing == WireGuard {
		if has.Local, err = h.lasting(has.Local, self); err != nil {
			return err
		}
	}
	claimed := others
	others, refused := Sound(self, claimed, has)
	segment, err := h.segmentOf(self, n.Routing)
	if err != nil {
		return err
	}
	want := newPlan(self, others, n.Routing, segment)
	if want.encrypted {
		want.shut(self, claimed, others, has)
	}
	want.refused = append(refused, want.refused...)
	return do(h, want, others)
}

// passRemotes calls Remotes with the ways of a plan whose routes are in the kernel. A way that programs cannot take is
// left to the kernel.
func (n *Network) passRemotes(h host, want plan) error {
	if n.Remotes == nil {
		return nil
	}
	secured, err := n.transforms()
	var have map[route]netlink.Route
	var ways []Remote
	if err == nil && !secured && !want.encrypted {
		if have, err = h.routes(); err == nil {
			ways, err = h.remotes(want, have, n.Port)
		}
	}
	if passErr := n.Remotes(ways); passErr != nil {
		return errors.Join(err, passErr)
	}
	n.passed.Store(&ways)
	return err
}

// transforms reports whether the host has policies of IPsec, which programs would bypass.
func (n *Network) transforms() (bool, error) {
	var policies []netlink.XfrmPolicy
	err := n.Host.Do(func() (err error) { // a handle has no socket for them
		policies, err = rtnl.Dump(func() ([]netlink.XfrmPolicy, error) { return netlink.XfrmPolicyList(unix.AF_UNSPEC) })
		return err
	})
	if errors.Is(err, unix.EPROTONOSUPPORT) { // a kernel without IPsec
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("list policies of IPsec: %w", err)
	}
	return len(policies) > 0, nil
}

// AddressesOfIPVS is kube-proxy's IPVS device with the addresses of all Services: they do not count as the host's.
const AddressesOfIPVS = "kube-ipvs0"

func (n *Network) has(h host) (Host, error) {
	devices, err := h.Devices()
	if err != nil {
		return Host{}, err
	}
	var has Host
	if n.Reserved != nil {
		has.Reserved = n.Reserved()
	}
	switch n.Routing {
	case Auto, VXLAN:
		has.Tunnel = n.Port
	case WireGuard:
		has.Tunnel = n.Encryption.Port
	}
	for _, d := range devices {
		if d.Name != DeviceName && d.Name != WireGuardName && d.Name != AddressesOfIPVS {
			has.Local = append(has.Local, d.Addrs...)
		}
	}
	if n.ClusterIPs != nil {
		has.ClusterIPs = n.ClusterIPs()
	}
	return has, nil
}

// Has returns the addresses that the host has and needs, except for pods.
func (n *Network) Has() (Host, error) {
	h, err := n.open()
	if err != nil {
		return Host{}, err
	}
	defer h.Close()
	return n.has(h)
}

// Watch reports changes of the node's devices, addresses and routes, after which Apply may have to repair, like
// rtnl.Conn.Watch.
func (n *Network) Watch(ctx context.Context) (<-chan struct{}, error) {
	return rtnl.In(n.Host).Watch(ctx)
}

// Remove removes what Apply has made.
func (n *Network) Remove() error {
	h, err := n.open()
	if err != nil {
		return err
	}
	defer h.Close()
	return errors.Join(n.passRemotes(h, plan{}), h.apply(plan{}), firewall{}.apply(n.Host))
}

// MTU returns the largest MTU in bytes of this node's pods: the MTU of the device with the node's address, less the
// tunnel's overhead. With Auto it always subtracts the overhead, since a node that needs a tunnel can join at any time.
func (n *Network) MTU(self Node, others []Node) (mtu int, err error) {
	err = n.planned(self, others, func(h host, _ plan, others []Node) error {
		local := underlay(self, others)
		if !local.IsValid() && len(self.Addresses) > 0 {
			local = self.Addresses[0] // no node is reached by a tunnel
		}
		base, err := h.underlay(local)
		mtu = base.MTU - n.Routing.overhead(local)
		return err
	})
	return mtu, err
}

// Way is the path from this node to a pod range of another node.
type Way struct {
	Node  string
	Range netip.Prefix
	// Via is "native via 192.0.2.2", or the same with "vxlan" or "wireguard", with the other node's address, and "by eBPF"
	// where programs bypass the stacks; empty: the range is not reached.
	Via string
	// There is set if the route and the tunnel's neighbours are in the kernel. Lacks names the missing one.
	There bool
	Lacks string
}

// Inspect returns Apply's ways to the ranges of other nodes, and what of other nodes is left out, as *[NodeError]. It
// changes nothing.
func (n *Network) Inspect(self Node, others []Node) (ways []Way, refused []error, err error) {
	err = n.planned(self, others, func(h host, want plan, others []Node) error {
		if refused = want.refused; want.encrypted {
			ways, err = n.inspectEncrypted(h, want)
			return err
		}
		device, err := h.device()
		if err != nil {
			return err
		}
		have, err := h.routes()
		if err != nil {
			return err
		}
		var neighbours map[neighbour]netlink.Neigh
		if device.index != 0 {
			if neighbours, err = h.neighbours(device.index); err != nil {
				return err
			}
		}
		for _, r := range want.routes {
			i := slices.IndexFunc(others, func(o Node) bool { return slices.Contains(o.Ranges, r.dst) })
			w := Way{Node: others[i].Name, Range: r.dst, Via: fmt.Sprint("native via ", r.via)}
			var lacks error
			if r.device == 0 {
				r.device = device.index
				p := want.peers[slices.IndexFunc(want.peers, func(p peer) bool { return slices.Contains(p.hops, r.via) })]
				w.Via = fmt.Sprint("vxlan via ", p.underlay)
				lacks = device.lacks(p, neighbours)
			}
			if _, there := have[r]; !there {
				lacks = errors.Join(lacks, errors.New("no route"))
			}
			if passed := n.passed.Load(); passed != nil &&
				slices.ContainsFunc(*passed, func(p Remote) bool { return p.Range == r.dst }) {
				w.Via += " by eBPF"
			}
			if w.There = lacks == nil; !w.There {
				w.Lacks = lacks.Error()
			}
			ways = append(ways, w)
		}
		return nil
	})
	return ways, refused, err
}

func (d device) lacks(p peer, have map[neighbour]netlink.Neigh) error {
	if d.index == 0 {
		return fmt.Errorf("no device %s", DeviceName)
	}
	for _, want := range neighboursOf(d.index, []peer{p}) {
		if _, there := have[neighbourOf(want)]; !there {
			return fmt.Errorf("device %s lacks the neighbour %v at %v", DeviceName, want.IP, want.HardwareAddr)
		}
	}
	return nil
}
