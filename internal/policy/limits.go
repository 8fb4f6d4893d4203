// SPDX-License-Identifier: Apache-2.0

package policy

// Limits.
const (
	// MostLabels is how many labels [Snapshot.Trim] leaves a pod of those that policies of the cluster name, of those that NetworkPolicies of its namespace
	// name, and of those that others name; and how many named ports.
	MostLabels = 64
	// MostPortNumbers is how many numbers a port of one name may have among the pods of a namespace: where rules to others name it, each is a row for each
	// rule set.
	MostPortNumbers = 64
	// MostOverlaps is how many pairs there may be of a block of the rules in force on a node and a range, a block's or an exception's, that lies
	// in it. Compiling takes that much time and memory: at the limit 40 ms and 20 MB.
	MostOverlaps = 1 << 18
	// MostWork bounds what compiling all that is in force on a node may cost: for a rule set, an identity that it meets counts 1, a block with this identity
	// or a rule that selects it 1 more, but for rules of ClusterNetworkPolicies, which each rule set has, and its row rowWork; each combination of rules
	// that identities meet counts its rules, and portWork for a port or a row for ports; to ask podWork pods about a term of a selector counts 1 too, and
	// each value of a label that rules name toldWork, and podWork namespaces that each term of its rule's selector may have to be asked about 1. Identities are the pods, nodes and ranges of addresses that rules tell apart.
	// At the limit compiling takes some seconds, and two hundred megabytes. A change may cost as much, and what there was before besides: both meet.
	MostWork = 1 << 22
	// MeetingWork is what it costs of MostWork where a rule set meets an identity that rules of others tell apart.
	MeetingWork = 2 + rowWork
)
