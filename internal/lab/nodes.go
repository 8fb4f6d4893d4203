// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"path/filepath"

	"mustang/internal/datapath"
	"mustang/internal/nodenet"
	"mustang/internal/rtnl"
)

// TunnelDevice is the VXLAN device of hosts that route to each other's pods.
const TunnelDevice = nodenet.DeviceName

// asNodes reports whether two hosts reach each other's pods as the nodes of a cluster do. Without an overlay and eBPF,
// plain routes do the same.
func (o Options) asNodes() bool {
	return o.Topology == TopologyTwoHosts && !o.hostsOnly() && o.traits().Routed && !o.NAT &&
		(o.hasOverlay() || o.Datapath == DatapathEBPF)
}

func (l *Lab) joinNode(ctx context.Context, h *host) error {
	o := nodenet.Options{Host: h.ns, Routing: nodenet.Native}
	if l.Options.hasOverlay() {
		o.Routing = nodenet.VXLAN
	}
	others := []nodenet.Node{h.peer.node()}
	if l.Options.Datapath != DatapathEBPF {
		return nodenet.New(o).Apply(h.node(), others)
	}
	d, err := l.nodeDatapath(ctx, h)
	if err != nil {
		return err
	}
	o.Remotes = func(ways []nodenet.Remote) error {
		rows := make([]datapath.Remote, len(ways))
		for i, w := range ways {
			rows[i] = datapath.Remote(w)
		}
		_, err := d.Remotes().Apply(ctx, rows)
		return err
	}
	if err := nodenet.New(o).Apply(h.node(), others); err != nil || !l.Options.hasOverlay() {
		return err
	}
	_, err = d.Uplinks().Put(ctx, h.ns, TunnelDevice) // of services with a backend on the other host
	return err
}

func (h *host) node() nodenet.Node {
	return nodenet.Node{Name: h.place, Ranges: h.podCIDRs, Addresses: rtnl.Addrs(h.addresses)}
}

// nodeDatapath returns a host's datapath, with its pod and its uplink.
func (l *Lab) nodeDatapath(ctx context.Context, h *host) (d *datapath.Datapath, err error) {
	if d = l.datapath; h.pod == PodA {
		if d, err = l.openDatapathAt(ctx, filepath.Join(l.store.bpfMount(l.Options.Name), h.place)); err == nil {
			err = l.addEndpoints(ctx, d, h.pod)
		}
	}
	if err == nil {
		_, err = d.Uplinks().Put(ctx, h.ns, Uplink)
	}
	return d, err
}
