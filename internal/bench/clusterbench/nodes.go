// SPDX-License-Identifier: Apache-2.0

package clusterbench

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

type node struct {
	name string
	info corev1.NodeSystemInfo
	cpus int64
	// kind is the common properties of nodes that are alike.
	kind string
}

// chooseNodes returns the nodes with these names, in their order, or without names two that take pods, alike if there
// are such.
func (a *api) chooseNodes(ctx context.Context, names []string) ([]node, error) {
	all, err := list[corev1.Node](ctx, a.dynamic.Resource(nodes), "")
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, func(x, y corev1.Node) int { return cmp.Compare(x.Name, y.Name) })
	found := map[string]node{}
	var usable []node
	var refused []string
	for _, n := range all {
		if len(names) > 0 && !slices.Contains(names, n.Name) {
			continue
		}
		if reason := refuses(n); reason != "" {
			refused = append(refused, "node "+n.Name+" "+reason)
			continue
		}
		info, cpus := n.Status.NodeInfo, n.Status.Capacity.Cpu()
		kind := strings.Join([]string{n.Labels[corev1.LabelInstanceTypeStable], info.Architecture, info.KernelVersion,
			cpus.String()}, " ")
		found[n.Name] = node{n.Name, info, cpus.Value(), kind}
		usable = append(usable, found[n.Name])
	}
	switch {
	case len(names) > 0 && len(refused) > 0:
		return nil, errors.New(strings.Join(refused, ", "))
	case len(names) == 0 && len(usable) == 0:
		return nil, fmt.Errorf("no node takes pods: %s", cmp.Or(strings.Join(refused, ", "), "the cluster has none"))
	case len(names) == 0:
		return pair(usable), nil
	}
	var chosen []node
	for _, name := range names {
		n, ok := found[name]
		if !ok {
			return nil, fmt.Errorf("node %s is not in the cluster", name)
		}
		chosen = append(chosen, n)
	}
	return chosen, nil
}

// pair returns the first two nodes that are alike, or the first two.
func pair(all []node) []node {
	for i, n := range all {
		for _, other := range all[i+1:] {
			if other.kind == n.kind {
				return []node{n, other}
			}
		}
	}
	return all[:min(2, len(all))]
}

// refuses returns why a node takes no pods, "" if it does.
func refuses(n corev1.Node) string {
	ready := slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
	taint := slices.IndexFunc(n.Spec.Taints,
		func(t corev1.Taint) bool { return t.Effect != corev1.TaintEffectPreferNoSchedule })
	switch {
	case !ready:
		return "is not ready"
	case n.Spec.Unschedulable:
		return "is cordoned"
	case n.Status.NodeInfo.OperatingSystem != "" && n.Status.NodeInfo.OperatingSystem != "linux":
		return "does not run Linux"
	case taint >= 0:
		return "has taint " + n.Spec.Taints[taint].ToString()
	}
	return ""
}

// mostNames is the number of DaemonSets that a note names.
const mostNames = 20

// describe gathers the result file's description of the nodes and of the network that connects their pods.
func (c *Cluster) describe(ctx context.Context) error {
	at := hostClient
	if c.hostless != "" {
		at = client
	}
	out, err := c.run(ctx, at, "describe")
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
		return fmt.Sprintf("%s: %d CPUs, %s%s, kubelet %s.", who, n.cpus, kernel, n.info.ContainerRuntimeVersion,
			n.info.KubeletVersion)
	}
	first, last := c.nodes[0], c.nodes[len(c.nodes)-1]
	switch {
	case len(c.nodes) == 1:
		return describe("One node", first, "")
	case first.kind == last.kind && first.info.KubeletVersion == last.info.KubeletVersion &&
		first.info.ContainerRuntimeVersion == last.info.ContainerRuntimeVersion:
		return describe("Both nodes", first, "")
	}
	return describe("The clients' node", first, "") + " " +
		describe("The other node, which is not alike", last, "kernel "+last.info.KernelVersion+", ")
}

// daemons returns a remark with the names of the DaemonSets: most networks of pods are one.
func (c *Cluster) daemons(ctx context.Context) string {
	all, err := list[appsv1.DaemonSet](ctx, c.api.dynamic.Resource(daemonSets), "")
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
