// SPDX-License-Identifier: Apache-2.0

package clusterbench

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

// chooseNodes returns the nodes with these names, in their order, or without names the first two that take pods.
func (a *api) chooseNodes(ctx context.Context, names []string) ([]corev1.Node, error) {
	all, err := list[corev1.Node](ctx, a.dynamic.Resource(nodes), "")
	if err != nil {
		return nil, err
	}
	var refused []string
	usable := slices.DeleteFunc(all, func(n corev1.Node) bool {
		reason := refuses(n)
		if reason != "" && (len(names) == 0 || slices.Contains(names, n.Name)) {
			refused = append(refused, "node "+n.Name+" "+reason)
		}
		return reason != ""
	})
	if len(names) == 0 {
		if len(usable) == 0 {
			return nil, fmt.Errorf("no node takes pods: %s", cmp.Or(strings.Join(refused, ", "), "the cluster has none"))
		}
		slices.SortFunc(usable, func(x, y corev1.Node) int { return cmp.Compare(x.Name, y.Name) })
		return usable[:min(2, len(usable))], nil
	}
	if len(refused) > 0 {
		return nil, errors.New(strings.Join(refused, ", "))
	}
	var chosen []corev1.Node
	for _, name := range names {
		i := slices.IndexFunc(usable, func(n corev1.Node) bool { return n.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("node %s is not in the cluster", name)
		}
		chosen = append(chosen, usable[i])
	}
	return chosen, nil
}

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
	describe := func(who string, n corev1.Node, kernel string) string {
		info := n.Status.NodeInfo
		return fmt.Sprintf("%s: %d CPUs, %s%s, kubelet %s.", who, n.Status.Capacity.Cpu().Value(), kernel,
			info.ContainerRuntimeVersion, info.KubeletVersion)
	}
	kind := func(n corev1.Node) string {
		info := n.Status.NodeInfo
		return strings.Join([]string{n.Labels[corev1.LabelInstanceTypeStable], info.Architecture, info.KernelVersion,
			describe("", n, "")}, " ")
	}
	first, last := c.nodes[0], c.nodes[len(c.nodes)-1]
	switch {
	case len(c.nodes) == 1:
		return describe("One node", first, "")
	case kind(first) == kind(last):
		return describe("Both nodes", first, "")
	}
	return describe("The clients' node", first, "") + " " +
		describe("The other node, which is not alike", last, "kernel "+last.Status.NodeInfo.KernelVersion+", ")
}

// daemons returns a remark with the names of the DaemonSets: most networks of pods are one.
func (c *Cluster) daemons(ctx context.Context) string {
	all, err := list[appsv1.DaemonSet](ctx, c.api.dynamic.Resource(daemonSets), "")
	if err != nil {
		return "What connects the pods is unknown: DaemonSets cannot be listed."
	}
	set := map[string]bool{}
	for _, d := range all {
		set[d.Name] = true
	}
	names := slices.Sorted(maps.Keys(set))
	text := "DaemonSets: " + strings.Join(names[:min(len(names), mostNames)], ", ")
	if len(names) == 0 {
		text = "No DaemonSets"
	}
	if !slices.Contains(names, "kube-proxy") {
		text += "; no kube-proxy"
	}
	return text + "."
}
