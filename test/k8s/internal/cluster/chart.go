// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"net"
	"strings"
)

// clusterInfo is the ConfigMap that kubeadm makes. The chart reads the address of the API server from it.
const clusterInfo = `apiVersion: v1
kind: ConfigMap
metadata: {name: cluster-info, namespace: kube-public}
data:
  kubeconfig: |
    apiVersion: v1
    kind: Config
    clusters: [{name: "", cluster: {server: "https://%s"}}]
`

// installChart installs Mustang by its chart. The chart finds the API server by itself.
func (c *Cluster) installChart() error {
	if err := c.apply(fmt.Sprintf(clusterInfo, net.JoinHostPort(c.nodes[0].addrs[0], "6443"))); err != nil {
		return err
	}
	return c.helm("install", c.Chart)
}

// helm runs a verb of Helm on the release, with the flags of the set-up and other values.
func (c *Cluster) helm(verb, chart string, values ...string) error {
	args := []string{c.Helm, verb, "mustang", "-n", "kube-system"}
	if chart != "" {
		args = append(args, chart)
		for _, v := range append(values, "agent.link="+c.Link, "agent.routing="+c.routing()) {
			args = append(args, "--set", v)
		}
	}
	if out, err := c.Command(c.ctx, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args[1:], " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// routing returns how the pods of the set-up's nodes reach each other.
func (s Setup) routing() string {
	if s.Nodes == "one" || s.Nodes == "three" {
		return "auto"
	}
	return s.Nodes
}
