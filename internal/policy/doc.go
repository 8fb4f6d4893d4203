// SPDX-License-Identifier: Apache-2.0

// Package policy decides which pods may talk, by NetworkPolicy (networking.k8s.io/v1) and ClusterNetworkPolicy
// (policy.networking.k8s.io/v1beta1, network-policy-api v0.3.0). Explain evaluates policies as these APIs define them;
// Compile makes rows for a datapath, whose look-up costs the same with any number of policies. docs/policy.md has the
// algorithm, its sources, and what the APIs leave open.
package policy
