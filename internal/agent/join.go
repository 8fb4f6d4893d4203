// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"mustang/internal/kube"
	"mustang/internal/nodenet"
	"mustang/internal/service/manifest"
)

// readPods passes the sound pod ranges and addresses of nodes to services if these may have changed.
func (a *Agent) readPods() error {
	a.mu.Lock()
	unread := a.nodes.unread
	a.nodes.unread = false
	self, others, _, _ := a.nodes.split(a.Node)
	external := map[netip.Addr]string{}
	for name, n := range a.nodes.of {
		for _, addr := range n.External {
			external[addr] = "node " + name
		}
	}
	a.mu.Unlock()
	if !unread {
		return nil
	}
	host, err := nodenet.Host{}, error(nil)
	if a.Nodes == nil {
		host.ClusterIPs = a.ClusterIPs()
	} else if host, err = a.Nodes.Has(); err != nil {
		a.mu.Lock()
		a.nodes.unread = true
		a.mu.Unlock()
		return err
	}
	others, _ = nodenet.Sound(self, others, host) // joining the nodes logs what it refuses
	taken := manifest.Taken{Tunnel: host.Tunnel, Pods: map[netip.Prefix]string{}, Nodes: map[netip.Addr]string{},
		Hosts: external, Pools: a.Pools}
	inPool := func(r netip.Prefix) bool { return slices.ContainsFunc(a.Pools, r.Overlaps) } // which no Node takes away
	for _, n := range append(others, self) {
		for _, r := range n.Ranges {
			if !inPool(r) {
				taken.Pods[r] = n.Name
			}
		}
		for _, addr := range n.Addresses {
			if !inPool(netip.PrefixFrom(addr, addr.BitLen())) {
				taken.Nodes[addr] = "node " + n.Name
			}
		}
	}
	for _, addr := range host.Reserved {
		taken.Nodes[addr] = "the API server"
	}
	for _, p := range host.Local {
		if !p.Addr().IsLinkLocalUnicast() { // each device of a pod has one
			taken.Hosts[p.Addr()] = "node " + a.Node
		}
	}
	a.mu.Lock()
	a.services.setTaken(taken)
	a.mu.Unlock()
	return nil
}

// ClusterIPs returns the addresses of the cluster's Services that the agent has read.
func (a *Agent) ClusterIPs() []netip.Addr {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.services.cluster.ClusterIPs()
}

func (a *Agent) joinNodes(ctx context.Context) {
	disturbed, err := a.Nodes.Watch(ctx)
	if err != nil {
		a.Log.Warn("routes are compared once a minute alone", "error", err)
	}
	loop{
		changed: a.nodes.changed, disturbed: disturbed, every: nodesResync, pause: nodesPause, log: a.Log,
		failed: "nodes not joined", again: "nodes joined again",
		round: func(bool) (bool, error) {
			a.mu.Lock()
			self, others, available, known := a.nodes.split(a.Node)
			a.mu.Unlock()
			if !known {
				return true, nil
			}
			begin := time.Now()
			a.joining.Store(true)
			defer a.joining.Store(false)
			err := a.join(ctx, self, others, available)
			a.State.Joined(time.Since(begin), err)
			return true, err
		},
	}.run(ctx)
}

func (a *Agent) join(ctx context.Context, self nodenet.Node, others []nodenet.Node, available bool) error {
	errs := a.Nodes.Apply(self, others)
	a.mu.Lock()
	failed := func(err error) bool {
		return !errors.As(err, new(*nodenet.NodeError)) && !errors.Is(err, nodenet.ErrOtherRoute)
	}
	a.nodes.joined = a.nodes.joined || !slices.ContainsFunc(parts(errs), failed)
	a.attach, a.nodes.unread = true, true // a tunnel may be new, and the host may have other networks
	for _, err := range parts(errs) {
		if left := (*nodenet.NodeError)(nil); errors.As(err, &left) && left.Alike {
			a.warnings.add(kube.Warning{Kind: kube.Nodes, Name: left.Node, Reason: "NotJoined", Text: left.Text,
				Everywhere: true})
		}
	}
	a.mu.Unlock()
	a.wake()
	if self.Key != a.Key {
		errs = errors.Join(errs, a.Cluster.SetKey(ctx, self.Name, a.Key))
	}
	if len(self.Ranges) == 0 {
		return errs
	}
	mtu, err := a.Nodes.MTU(self, others)
	if err == nil && a.Attacher != nil {
		err = a.Attacher.Attach(ctx, self.Ranges, mtu)
	}
	if err == nil && !available {
		err = a.Cluster.SetAvailable(ctx, self.Name)
	}
	return errors.Join(errs, err)
}

// The shortest time between joins of nodes, and the interval of full comparisons.
const (
	nodesPause  = time.Second
	nodesResync = time.Minute
)
