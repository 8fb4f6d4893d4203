// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/bench"
	"mustang/internal/bench/clusterbench"
	"mustang/internal/bench/suites"
	"mustang/internal/kube"
)

const clusterImage = "docker.io/library/mustang:0.1.0" // the image of the chart

// clusterMargin is how long pods may run beyond the time of a bench: to pull the image, and for a run without a time.
const clusterMargin = 6 * time.Hour

func (c *config) benchCluster() *cobra.Command {
	var o bench.Options
	var flags benchFlags
	var where clusterbench.Options
	cmd := &cobra.Command{
		Use:   "cluster",
		Short: "Measure host to host, pod to pod and pod to service in a Kubernetes cluster",
		Long: `Measure a Kubernetes cluster with any CNI plugin and service proxy: host to host, pod to pod and pod
to a service's cluster IP, on one node and across two. mustang compare compares plugins.

The load runs in pods without privileges, Jobs in a namespace that the bench makes and removes. The
image must have this version of mustang, and nodes must be able to pull it. The two nodes are given by
--nodes, or are the first two by name that are ready and without taints.

The exit code is 1 if a row failed.`,
		Example: `  mustang bench cluster
  mustang bench cluster --context staging --nodes worker-1,worker-2 --time 5m
  mustang bench cluster --only pod-ip --workload tcp_rr --quick
  mustang compare results/before results/after`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			unknown := suites.Cluster(suites.ClusterPlacement{}, suites.ClusterPlacement{})
			err := checkNodes(where.Nodes)
			if err == nil {
				o.Suites, err = flags.traffic.Apply([]suites.Suite{unknown})
			}
			if err == nil {
				err = flags.parse(cmd, &o)
			}
			if err == nil {
				err = o.Validate()
			}
			if err != nil {
				return cli.Usage(err)
			}
			if err := checkAccess(where.Access); err != nil {
				return err
			}
			return c.runCluster(cmd, o, where, flags)
		},
	}
	f := cmd.Flags()
	addCluster(f, &where)
	f.BoolVar(&where.IPv6, "ipv6", false, "measure the IPv6 addresses of a dual-stack cluster")
	flags.add(cmd, &o)
	f.Lookup("slice").Usage = "how long a connection carries load before the next one's turn (default 20ms)"
	return cmd
}

// addCluster adds the flags that select a cluster, and nodes of it.
func addCluster(f *pflag.FlagSet, where *clusterbench.Options) {
	f.StringVar(&where.Access.Kubeconfig, "kubeconfig", "",
		"file with the cluster and its user (default: $KUBECONFIG, ~/.kube/config, or the pod's service account)")
	f.StringVar(&where.Access.Context, "context", "", "context in that file (default: its current one)")
	f.StringSliceVar(&where.Nodes, "nodes", nil, "nodes of the clients and of the servers across: one or two names")
	f.StringVar(&where.Image, "image", clusterImage, "image with this version of mustang at "+clusterbench.Program)
}

func checkNodes(nodes []string) error {
	switch {
	case len(nodes) > 2:
		return errors.New("--nodes: want one node or two")
	case len(nodes) == 2 && nodes[0] == nodes[1]:
		return fmt.Errorf("--nodes: %s twice: want one node or two", nodes[0])
	}
	return nil
}

func checkAccess(to clusterbench.Access) error {
	kube.LogTo(slog.New(slog.DiscardHandler)) // the library's lines on connections that Ctrl-C closes
	if to.Kubeconfig == "" {
		return nil
	}
	return kube.CheckFile(to.Kubeconfig)
}

func (c *config) runCluster(cmd *cobra.Command, o bench.Options, where clusterbench.Options,
	flags benchFlags) (err error) {
	where.Note = bench.NewProgress(c.Stderr, c.Terminal).Note
	where.Longest = max(o.Time, 0) + clusterMargin
	up, err := clusterbench.Up(cmd.Context(), where)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, up.Close()) }()
	o.Cluster = up
	if o.Suites, err = flags.traffic.Apply([]suites.Suite{up.Suite()}); err != nil {
		return err
	}
	return c.runBench(cmd, o, flags)
}
