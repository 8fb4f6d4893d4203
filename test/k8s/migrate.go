// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"path/filepath"

	"mustang/test/k8s/internal/cluster"
)

// connections is how many a migration has at least.
const connections = 100_000

// migrate brings up a cluster with flannel and kube-proxy, and takes it to Mustang and back under load. With network,
// Mustang replaces flannel too.
func (r *runner) migrate(ctx context.Context, network bool) error {
	if err := r.paths(ctx); err != nil {
		return err
	}
	r.cluster.Peers = filepath.Join(r.cluster.Dir, "peers")
	r.cluster.Setup = cluster.Setup{Peer: "flannel", Family: "ipv4", Nodes: r.node, Proxy: "nftables"}
	if err := r.cluster.Programs.BuildPeers(ctx, "test/k8s", r.cluster.Peers, []string{"flannel"}); err != nil {
		return err
	}
	c, err := cluster.Start(ctx, r.cluster)
	if err != nil {
		return err
	}
	table, err := c.Migrate(network, connections)
	r.tell(c, "to Mustang and back\n"+table, err)
	return c.Close()
}
