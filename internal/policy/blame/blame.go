// SPDX-License-Identifier: Apache-2.0

// Package blame finds the namespaces whose policies cost a node most, where there is no room for all. What a namespace costs is what its policies cost by
// themselves, and a part of what they cost where those of several namespaces meet: each rule set with a block has a row for each range that anybody's rules
// tell apart, and each that selects pods one for each kind of pods. docs/policy.md has the rules.
package blame

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"mustang/internal/policy"
	"mustang/internal/policy/ranges"
)

// WorkError is a [policy.WorkError] with whom to blame.
type WorkError struct {
	// Most is the largest policy of the namespace whose policies cost most.
	Most policy.Origin
	// TooMany are the namespaces whose policies cost most, as many as have to go for the rest not to be too much.
	TooMany []string
}

func (e *WorkError) Error() string {
	return fmt.Sprintf("%s: its ports, and the pods and ranges that its rules tell apart, are too many for a node, with those of other policies", e.Most)
}

// Explain returns a *[WorkError] for a [policy.WorkError], and any other error as it is.
func Explain(err error) error {
	var much *policy.WorkError
	if !errors.As(err, &much) {
		return err
	}
	r := rulesOf(&much.Of)
	gone := r.asking()
	if len(gone) == 0 {
		gone = costs{of: work, meeting: policy.MeetingWork, limit: policy.MostWork, asked: true}.tooMany(r)
	}
	return &WorkError{r.largest(gone), gone}
}

func work(c *policy.Compiler, _ *policy.Snapshot) int { return c.Cost().Work }

// Fullest returns the namespaces whose policies have the most of some rows on the node: as many as have to go so that no more rows than room are left, one
// at least. The function rows counts the rows; hosts is how many addresses pods and nodes have. Each namespace has the rows of its policies by themselves. With
// verdicts, it also has a part of those where rule sets of others meet what it tells apart. Nobody is to blame if ClusterNetworkPolicies have too many beside one
// NetworkPolicy of each namespace.
func Fullest(s policy.Snapshot, rows func(r policy.Rows, hosts int) int, verdicts bool, room int) []string {
	c := costs{of: func(c *policy.Compiler, s *policy.Snapshot) int { return rows(c.Rows(), hostsIn(s)) }, limit: room}
	if verdicts {
		c.meeting = 1
	}
	return slices.DeleteFunc(c.tooMany(rulesOf(&s)), func(name string) bool { return name == "" })
}

// costs is what policies cost, and how much they may.
type costs struct {
	of      func(*policy.Compiler, *policy.Snapshot) int // by themselves
	meeting int                                          // where a rule set meets a range, or pods or nodes, that others tell apart
	limit   int
	asked   bool // what policies cost has that of labels for which rules ask
}

// tooMany returns the namespaces whose policies cost most on the node, one at least, and as many as have to go for the cost of the rest not to exceed the
// limit. No ClusterNetworkPolicy is to blame while NetworkPolicies have rules, unless those of the cluster are too much work by themselves. Nobody is if they are too
// much beside one rule set of each namespace.
func (c costs) tooMany(r *rules) []string {
	if len(r.names) == 1 {
		return r.names
	}
	h := hostsOf(r.Snapshot, r.policies)
	bills, listed := make([]bill, len(r.names)), listOf(r.cluster())
	for i, name := range r.names {
		who := int32(i)
		kinds := h.apart(func(t *trait) bool { return t.asks(who) })
		own := h.only(r.Snapshot, name, kinds)
		own.Policies = r.policies[i]
		b, err := c.bill(own)
		if err != nil && name == "" {
			return []string{name}
		}
		b.brings[ofHosts] = float64(len(kinds))
		if c.meeting > 0 && h.asksAlone(who) {
			without := h.apart(func(t *trait) bool { return !t.asksAlone(who) })
			b.brings[ofHosts] = max(b.brings[ofHosts], float64(len(h.all)-len(without)))
		}
		switch cluster := r.cluster(); {
		case name == "": // each rule set has what it tells apart
			least := c.isolated(r)
			if least > float64(c.limit) {
				return nil
			}
			b.brings, b.own = met{}, max(b.own, least)
		case len(cluster) > 0:
			own = h.only(r.Snapshot, name, h.apart(func(t *trait) bool { return t.asks(who) || t.asks(0) }))
			cost, sets := c.beside(own, r.policies[i], cluster)
			b.own, b.sets[ofListed] = max(b.own, cost), max(0, sets-b.sets[ofRanges])
			b.brings[ofListed] = listed.holds(r.policies[i])
		}
		b.name, b.who, b.loses = name, who, r.loses(i)
		bills[i] = b
	}
	if c.asked {
		shareAsked(bills, float64(r.Asking(slices.Concat(r.policies...))))
	}
	return c.most(bills, func(left []bill) int {
		asks := make([]bool, len(bills))
		for _, b := range left {
			asks[b.who] = true
		}
		return len(h.apart(func(t *trait) bool { return slices.ContainsFunc(t.askers, func(who int32) bool { return asks[who] }) }))
	})
}

// isolated returns what policies cost if all pods of their namespaces are isolated: a rule set is left of each.
func (c costs) isolated(r *rules) float64 {
	s := *r.Snapshot
	s.Policies, s.Previous = slices.Concat(r.policies...), nil
	s.Isolate(r.names...)
	b, _ := c.bill(s)
	return b.own
}

// beside returns what the policies of a namespace cost beside those of the cluster, for some pods, more than if its pods were isolated, and how many rule sets
// have blocks then.
func (c costs) beside(of policy.Snapshot, own, cluster []policy.Policy) (cost, sets float64) {
	of.Policies = slices.Concat(own, cluster)
	with, _ := c.bill(of)
	of.Isolate(own[0].Namespace)
	least, err := c.bill(of)
	if err != nil {
		return 0, with.sets[ofRanges]
	}
	return with.own - least.own, with.sets[ofRanges]
}

// bill compiles a snapshot with the policies of one namespace. The error is that this is too much work.
func (c costs) bill(own policy.Snapshot) (b bill, err error) {
	compiler := policy.NewCompiler(policy.Rows{})
	_, err = compiler.Change(own)
	if b.own = float64(c.of(compiler, &own)); err != nil {
		b.own = max(b.own, float64(c.limit))
	}
	cost := compiler.Cost()
	b.asked = float64(cost.Asked)
	b.brings[ofRanges] = float64(cost.Ranges)
	b.sets = met{ofRanges: float64(cost.RangeSets), ofHosts: float64(cost.HostSets)}
	return b, err
}

// list is the ranges of blocks.
type list struct{ *ranges.Set[int] }

func listOf(policies []policy.Policy) list {
	l, n := list{ranges.New[int]()}, 0
	for i := range policies {
		policies[i].Blocks(func(b *policy.Block) {
			l.Add(n, b.CIDR, b.Except)
			n++
		})
	}
	return l
}

// holds returns how many different ranges of policies are in a block of the list.
func (l list) holds(policies []policy.Policy) float64 {
	in := map[netip.Prefix]bool{}
	for _, p := range policies {
		if !p.Concerns(policy.Ingress) {
			p.Ingress = nil
		}
		if !p.Concerns(policy.Egress) {
			p.Egress = nil
		}
		p.Blocks(func(b *policy.Block) {
			for _, at := range append([]netip.Prefix{b.CIDR}, b.Except...) {
				if !in[at] && len(l.Of(l.Around(at))) > 0 {
					in[at] = true
				}
			}
		})
	}
	return float64(len(in))
}

// hostsIn returns how many addresses pods and nodes have.
func hostsIn(s *policy.Snapshot) (n int) {
	for i := range s.Nodes {
		n += len(s.Nodes[i].Addresses)
	}
	for i := range s.Pods {
		if !s.Pods[i].HostNetwork {
			n += len(s.Pods[i].Addresses)
		}
	}
	return n
}
