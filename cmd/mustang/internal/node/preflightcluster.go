// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/advise"
	"mustang/internal/kube"
)

// checkCluster checks the cluster of a kubeconfig: the ranges of nodes, DaemonSets of other networks.
func (p *preflight) checkCluster(ctx context.Context) error {
	client, err := kube.Connect(p.kubeconfig)
	if err != nil {
		return err
	}
	var nodes struct {
		Items []struct {
			Metadata struct{ Name string }
			Spec     struct{ PodCIDRs []netip.Prefix }
		}
	}
	if err := read(ctx, client, "/api/v1/nodes", &nodes); err != nil {
		return err
	}
	var without []string
	for _, n := range nodes.Items {
		if len(n.Spec.PodCIDRs) == 0 {
			without = append(without, n.Metadata.Name)
		}
		p.ipv6 = p.ipv6 || slices.ContainsFunc(n.Spec.PodCIDRs, func(r netip.Prefix) bool { return r.Addr().Is6() })
	}
	switch {
	case len(nodes.Items) == 0:
		p.warn("ranges of pods", "join the nodes first, or another --kubeconfig", "the cluster lacks nodes")
	case len(without) > 0:
		p.fail("ranges of pods", "kubeadm's --pod-network-cidr, or --allocate-node-cidrs of the controller manager",
			"nodes without spec.podCIDRs: %s", firstOf(without))
	default:
		p.ok("ranges of pods", "%s have one", count(len(nodes.Items), "node", "nodes"))
	}
	return p.checkDaemonSets(ctx, client)
}

func (p *preflight) checkDaemonSets(ctx context.Context, client *kube.Client) error {
	var sets struct {
		Items []struct {
			Metadata struct{ Namespace, Name string }
		}
	}
	if err := read(ctx, client, "/apis/apps/v1/daemonsets", &sets); err != nil {
		return err
	}
	var others []string
	proxied := false
	for _, s := range sets.Items {
		if advise.IsOther(s.Metadata.Name) {
			others = append(others, s.Metadata.Namespace+"/"+s.Metadata.Name)
		}
		proxied = proxied || s.Metadata.Name == "kube-proxy"
	}
	if proxied {
		p.fail("kube-proxy's DaemonSet", "docs/replace-kube-proxy.md; in a cluster without pods: kubectl -n kube-system "+
			"delete daemonset/kube-proxy configmap/kube-proxy",
			"it uses TCP ports %d and %d", healthzPort, metricsPort)
	} else {
		p.ok("kube-proxy's DaemonSet", "none")
	}
	if len(others) > 0 {
		p.warn("other networks", "remove them, or chain Mustang behind one", "DaemonSet %s", firstOf(others))
	} else {
		p.ok("other networks", "no known DaemonSet")
	}
	return nil
}

// read decodes the API server's answer to a path.
func read(ctx context.Context, client *kube.Client, path string, to any) error {
	var answer bytes.Buffer
	if err := client.Get(ctx, path, &answer); err != nil {
		return err
	}
	if err := json.Unmarshal(answer.Bytes(), to); err != nil {
		return fmt.Errorf("the API server's answer to %s: %w", path, err)
	}
	return nil
}

func firstOf(names []string) string { return cli.FirstOf(names, 5) }
