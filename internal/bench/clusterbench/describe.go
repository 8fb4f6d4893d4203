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
	at := hostClient
	if c.hostless != "" {
		at = client
	}
	out, err := c.run(ctx, at, []string{c.options.Program, PodCommand, "describe"})
	if err != nil {
		return err
	}
	if err := json.Unmarshal(out, &c.machine); err != nil {
		return fmt.Errorf("description of the node: %w", err)
	}
	c.notes = []string{c.describeNodes() + " " + c.daemons(ctx)}
	return nil
}

// describeNodes returns a remark on the nodes. The result file has the kernel of the first.
func (c *Cluster) describeNodes() string {
	describe := func(who string, n node, kernel string) string {
		return fmt.Sprintf("%s: %d CPUs, %s%s, kubelet %s.", who, n.cpus, kernel, n.info.ContainerRuntimeVersion, n.info.KubeletVersion)
	}
	first, last := c.nodes[0], c.nodes[len(c.nodes)-1]
	switch {
	case len(c.nodes) == 1:
		return describe("One node", first, "")
	case first.kind == last.kind && first.info.KubeletVersion == last.info.KubeletVersion && first.info.ContainerRuntimeVersion == last.info.ContainerRuntimeVersion:
		return describe("Both nodes", first, "")
	}
	return describe("The clients' node", first, "") + " " + describe("The other node, which is not alike", last, "kernel "+last.info.KernelVersion+", ")
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
	text := "DaemonSets: " + strings.Join(names[:min(len(names), mostNames)], ", ")
	if len(names) == 0 {
		text = "No DaemonSets"
	}
	if !slices.Contains(names, "kube-proxy") {
		text += "; no kube-proxy"
	}
	return text + "."
}
