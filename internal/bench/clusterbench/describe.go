// SPDX-License-Identifier: Apache-2.0

package clusterbench

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// mostNames is how many DaemonSets are named.
const mostNames = 20

// describe gathers what the result file says of the nodes and of what connects their pods.
func (c *Cluster) describe(ctx context.Context) error {
	out, err := c.run(ctx, hostClient, []string{c.options.Program, PodCommand, "describe"})
	if err != nil {
		return err
	}
	if err := json.Unmarshal(out, &c.machine); err != nil {
		return fmt.Errorf("description of the node: %w", err)
	}
	c.notes = nil
	for i, n := range c.nodes {
		role := [...]string{"Node of the clients", "The other node"}[i]
		c.notes = append(c.notes, fmt.Sprintf("%s: %d CPUs, kernel %s, %s, %s, kubelet %s.", role, n.cpus, n.info.KernelVersion, n.info.OSImage,
			n.info.ContainerRuntimeVersion, n.info.KubeletVersion))
	}
	if c.nodes[0].kind != c.nodes[len(c.nodes)-1].kind {
		c.notes = append(c.notes, "The two nodes are not alike.")
	}
	c.notes = append(c.notes, c.daemons(ctx))
	return nil
}

// daemons returns a remark with the names of the DaemonSets: most networks of pods are one.
func (c *Cluster) daemons(ctx context.Context) string {
	all, err := list[appsv1.DaemonSet](ctx, c.api.dynamic.Resource(daemonSets), metav1.ListOptions{})
	if err != nil {
		return "What connects the pods is unknown: DaemonSets cannot be listed."
	}
	var names []string
	for _, d := range all {
		names = append(names, d.Name)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	text := "DaemonSets: " + strings.Join(names[:min(len(names), mostNames)], ", ") + "."
	if len(names) == 0 {
		text = "The cluster has no DaemonSets."
	}
	if !slices.Contains(names, "kube-proxy") {
		text += " None is called kube-proxy."
	}
	return text
}
