// SPDX-License-Identifier: Apache-2.0

// Package policy decides which pods may talk, by NetworkPolicy (networking.k8s.io/v1) and ClusterNetworkPolicy
// (policy.networking.k8s.io/v1beta1) of Kubernetes, as docs/policy.md explains.
package policy
