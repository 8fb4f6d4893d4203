// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/agent"
	"mustang/internal/datapath"
	"mustang/internal/kube"
)

func (c *config) agent() *cobra.Command {
	var kubeconfig, node string
	var nodes agentNodes
	cmd := &cobra.Command{
		Use:   "agent --node NAME",
		Short: "Serve the Services and policies of a Kubernetes cluster on this node, until a signal ends it",
		Long: `Follow the Services, EndpointSlices and network policies of a Kubernetes cluster, and make the
services and policies of owner agent in this node's datapath those of the cluster. Those of other
owners stay. It changes nothing before it has read all objects. When it ends or is killed, services
and policies stay in force, and traffic goes on.

Join the pods of this node with those of the others, and let the container runtime attach pods with
addresses of the node's ranges, as its Node object has them.

Without --kubeconfig it uses the service account of the pod that it is in.`,
		Example: "  mustang agent --node=node-1 --kubeconfig=/etc/kubernetes/kubelet.conf",
		Args:    cli.Arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if node == "" {
				return cli.Usage(errors.New("--node is missing"))
			}
			if err := cli.RequireRoot(cmd); err != nil {
				return err
			}
			network, err := nodes.network()
			if err != nil {
				return err
			}
			client, err := kube.Connect(kubeconfig)
			if err != nil {
				return err
			}
			log := slog.New(slog.NewTextHandler(c.Stderr, nil))
			kube.LogTo(log)
			return c.OnDatapath(cmd.Context(), func(d *datapath.Datapath) error {
				return agent.New(agent.Options{
					Node: node, Source: client, Services: d.Services(), Policies: d.Policies(),
					Nodes: network, Attacher: &nodes, Status: client, Log: log,
				}).Run(cmd.Context())
			})
		},
	}
	cmd.AddCommand(c.agentCleanup())
	nodes.addFlags(cmd.Flags())
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig", "", "`file` with the address of the API server and credentials")
	cmd.Flags().StringVar(&node, "node", os.Getenv("NODE_NAME"), "`name` of this node in the cluster ($NODE_NAME)")
	return cmd
}
