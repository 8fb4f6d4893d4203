// SPDX-License-Identifier: Apache-2.0

package nodenet

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
)

// Way is the path from this node to a pod range of another node.
type Way struct {
	Node  string
	Range netip.Prefix
	// Via is "native via 192.0.2.2" or "vxlan via 192.0.2.2", with the other node's address; empty: the range is not
	// reached.
	Via string
	// There is set if the route and the tunnel's neighbours are in the kernel. Lacks is what is missing.
	There bool
	Lacks string
}

// Inspect returns Apply's ways to the ranges of other nodes, and what of other nodes is left out, as *[NodeError]. It
// changes nothing.
func (n *Network) Inspect(self Node, others []Node) (ways []Way, refused []error, err error) {
	err = n.planned(self, others, func(h host, want plan, others []Node) error {
		refused = want.refused
		device, err := h.device()
		if err != nil {
			return err
		}
		have, err := h.routes()
		if err != nil {
			return err
		}
		var neighbours []netlink.Neigh
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
			if !slices.ContainsFunc(have, func(o ownRoute) bool { return o.route == r }) {
				lacks = errors.Join(lacks, errors.New("no route"))
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

func (d device) lacks(p peer, have []netlink.Neigh) error {
	if d.index == 0 {
		return fmt.Errorf("no device %s", DeviceName)
	}
	for _, want := range neighboursOf(d.index, []peer{p}) {
		if !slices.ContainsFunc(have, func(n netlink.Neigh) bool { return sameNeighbour(n, want) }) {
			return fmt.Errorf("device %s lacks the neighbour %v at %v", DeviceName, want.IP, want.HardwareAddr)
		}
	}
	return nil
}
