// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"time"
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

// balanced returns the addresses of the Services of type LoadBalancer of the smoke test, once each has one of each
// family; none where the chart has not installed Mustang.
func (s *smoke) balanced() (all []string, err error) {
	if s.Peer != "" || len(s.nodes) < 2 {
		return nil, nil
	}
	const services = 2
	err = s.await(time.Minute, func() error {
		out, err := s.kubectl(nil, "-n", "smoke", "get", "service", "-o",
			"jsonpath={.items[*].status.loadBalancer.ingress[*].ip}")
		if all = strings.Fields(out); err == nil && len(all) != services*len(s.each("", "")) {
			err = fmt.Errorf("the load balancers have the addresses %q", all)
		}
		return err
	})
	return all, err
}

// helm runs a verb of Helm on the release, with the flags of the set-up and other values.
func (c *Cluster) helm(verb, chart string, values ...string) error {
	args := []string{verb}
	if chart != "" {
		args = append(args, chart)
		for _, v := range append(values, "agent.link="+c.Link, "agent.routing="+c.routing(),
			"loadBalancer.pools={"+c.list("10.197.0.240/28", "fd00:197::240/124")+"}") {
			args = append(args, "--set", v)
		}
	}
	return c.runHelm(args...)
}

// runHelm runs a verb of Helm, with arguments, on the release.
func (c *Cluster) runHelm(args ...string) error {
	args = slices.Concat([]string{c.Helm, args[0], "mustang", "-n", "kube-system"}, args[1:])
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
