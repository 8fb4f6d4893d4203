// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net/netip"
	"slices"
)

// view evaluates policies by their definition, without regard to cost.
type view struct {
	pods       map[netip.Addr]*Pod
	nodes      map[netip.Addr]*Node
	namespaces map[string]map[string]string
	policies   []*entry // in their order
	selected   map[subject][]*Policy
}

type subject struct {
	pod *Pod
	d   Direction
}

func newView(s *Snapshot) (*view, error) {
	if err := s.validate(); err != nil {
		return nil, err
	}
	v := &view{map[netip.Addr]*Pod{}, map[netip.Addr]*Node{}, s.NamespaceLabels(), make([]*entry, len(s.Policies)),
		map[subject][]*Policy{}}
	for i := range s.Policies {
		v.policies[i] = &entry{Policy: &s.Policies[i], id: s.Policies[i].Digest()}
	}
	slices.SortFunc(v.policies, (*entry).compare)
	for i := range s.Nodes {
		for _, a := range s.Nodes[i].Addresses {
			v.nodes[a.Unmap()] = &s.Nodes[i]
		}
	}
	for i := range s.Pods {
		for _, a := range s.Pods[i].Addresses {
			if !s.Pods[i].HostNetwork {
				v.pods[a.Unmap()] = &s.Pods[i]
			}
		}
	}
	return v, nil
}

func (v *view) decide(f Flow, d Direction) Decision {
	subject, peer := f.ends(d)
	pod := v.pods[subject]
	if pod != nil && subject == peer {
		return Decision{true, Origin{Reason: ToItself}}
	}
	selecting := v.selecting(pod, d)
	isolated := slices.ContainsFunc(selecting, func(p *Policy) bool { return p.Tier == Namespaced })
	judged := slices.ContainsFunc(selecting, func(p *Policy) bool { return p.JudgesNode })
	for t := Admin; t <= Baseline; t++ {
		node := v.nodes[peer]
		if t == Namespaced && isolated && node != nil && node.Name == pod.Node && !judged {
			return Decision{true, Origin{Reason: OwnNode}}
		}
		if decision, ok := v.tier(t, selecting, f, d); ok {
			return decision
		}
	}
	return Decision{Allow: true}
}

func (v *view) selecting(pod *Pod, d Direction) []*Policy {
	if pod == nil {
		return nil
	}
	out, known := v.selected[subject{pod, d}]
	if known {
		return out
	}
	for _, p := range v.policies {
		if p.Concerns(d) && p.Subject.matches(v.namespaces[pod.Namespace], pod.Labels) {
			out = append(out, p.Policy)
		}
	}
	v.selected[subject{pod, d}] = out
	return out
}

// tier evaluates the policies of a tier; ok is false if they leave the decision to the next tier.
func (v *view) tier(t Tier, selecting []*Policy, f Flow, d Direction) (decision Decision, ok bool) {
	for _, p := range selecting {
		if p.Tier != t {
			continue
		}
		rules, _ := p.rules(d)
		origin := p.origin()
		origin.Direction = d
		if t == Namespaced && !ok {
			origin.Reason = DefaultDeny
			decision, ok = Decision{false, origin}, true
		}
		origin.Reason = ByRule
		for origin.Index = range rules {
			switch r := &rules[origin.Index]; {
			case !v.matches(r, f, d):
			case r.Action == Pass:
				return Decision{}, false
			default:
				return Decision{r.Action == Accept, origin}, true
			}
		}
	}
	return decision, ok
}

func (v *view) matches(r *Rule, f Flow, d Direction) bool {
	_, peer := f.ends(d)
	return (len(r.Peers) == 0 || slices.ContainsFunc(r.Peers, func(p Peer) bool { return v.isPeer(p, peer) })) &&
		(len(r.Ports) == 0 || slices.ContainsFunc(r.Ports, func(p Port) bool { return v.isPort(p, f) }))
}

func (v *view) isPeer(p Peer, a netip.Addr) bool {
	switch {
	case p.Pods != nil:
		pod := v.pods[a]
		return pod != nil && p.Pods.matches(v.namespaces[pod.Namespace], pod.Labels)
	case p.Nodes != nil:
		node := v.nodes[a]
		return node != nil && p.Nodes.Matches(node.Labels)
	}
	return p.Block.CIDR.Contains(a) &&
		!slices.ContainsFunc(p.Block.Except, func(e netip.Prefix) bool { return e.Contains(a) })
}

func (v *view) isPort(p Port, f Flow) bool {
	if p.Name == "" {
		return p.Protocol == f.Protocol && p.First <= f.Port && f.Port <= p.Last
	}
	pod := v.pods[f.Destination.Unmap()]
	return pod != nil && slices.ContainsFunc(pod.Ports, func(n NamedPort) bool {
		return p.isNamed(n) && n.Protocol == f.Protocol && n.Port == f.Port
	})
}

// peered returns a snapshot without the pods elsewhere that no rule can match, as on a node of a large cluster.
func peered(s *Snapshot) Snapshot {
	known := *s
	elsewhere := func(p Pod) bool { return p.Node != s.Node }
	known.Pods = slices.DeleteFunc(slices.Clone(s.Pods), elsewhere)
	peers, namespaces := known.Peers(), s.NamespaceLabels()
	known.Pods = slices.DeleteFunc(slices.Clone(s.Pods), func(p Pod) bool {
		return elsewhere(p) && !peers.Has(&p, namespaces[p.Namespace])
	})
	return known
}

// enforced returns the addresses of the pods whose flows a node decides.
func enforced(v *view, node string) map[netip.Addr]bool {
	enforces := map[netip.Addr]bool{}
	for a, pod := range v.pods {
		if pod != nil && pod.Node == node {
			enforces[a] = true
		}
	}
	return enforces
}
