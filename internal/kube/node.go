// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Node is the network part of a Node object.
type Node struct {
	// Zone is the node's zone; empty if it is in none.
	Zone string
	// Addresses are its internal addresses, External the addresses for clients outside, both in the object's order.
	// PodCIDRs are the ranges of its pods.
	Addresses, External []netip.Addr
	PodCIDRs            []netip.Prefix
	// Available is whether a condition reports that pods can be attached.
	Available bool
	// Leaving is set if the node is being deleted, or the cluster autoscaler is about to delete it.
	Leaving bool
	// Created is when the object was made, and UID its identity.
	Created time.Time
	UID     string
}

const taintDeleted = "ToBeDeletedByClusterAutoscaler"

// NodeOf reads a Node object.
func NodeOf(object jsontext.Value) (n Node, err error) {
	var o corev1.Node
	if err := json.Unmarshal(object, &o); err != nil {
		return n, fmt.Errorf("object Node: %w", err)
	}
	n = Node{Zone: o.Labels[corev1.LabelTopologyZone], Leaving: o.DeletionTimestamp != nil,
		Created: o.CreationTimestamp.Time, UID: string(o.UID)}
	for _, t := range o.Spec.Taints {
		n.Leaving = n.Leaving || t.Key == taintDeleted
	}
	for _, text := range o.Spec.PodCIDRs {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return n, fmt.Errorf("object Node: spec.podCIDRs: %w", err)
		}
		n.PodCIDRs = append(n.PodCIDRs, p.Masked())
	}
	for _, a := range o.Status.Addresses {
		of := map[corev1.NodeAddressType]*[]netip.Addr{corev1.NodeInternalIP: &n.Addresses,
			corev1.NodeExternalIP: &n.External}[a.Type]
		if of == nil {
			continue
		}
		addr, err := netip.ParseAddr(a.Address)
		if err != nil {
			return n, fmt.Errorf("object Node: status.addresses: %w", err)
		}
		*of = append(*of, addr.Unmap())
	}
	for _, c := range o.Status.Conditions {
		n.Available = n.Available || c.Type == corev1.NodeNetworkUnavailable && c.Status == corev1.ConditionFalse
	}
	return n, nil
}

// SetAvailable sets the condition NetworkUnavailable of a Node to False: pods can be attached to its network.
func (c *Client) SetAvailable(ctx context.Context, node string) error {
	now := time.Now().UTC().Format(time.RFC3339)
	patch := fmt.Appendf(nil, `{"status": {"conditions": [{"type": "NetworkUnavailable", "status": "False",
"reason": "MustangIsUp", "message": "mustang agent has set up the network of pods", "lastTransitionTime": %q,
"lastHeartbeatTime": %[1]q}]}}`, now)
	_, err := c.dynamic.Resource(Nodes.resource()).Patch(ctx, node, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("set condition %s of node %s: %w", corev1.NodeNetworkUnavailable, node, err)
	}
	return nil
}
