// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"strconv"
)

// Limits of a policy, which [Policy.Validate] checks, and of a node.
const (
	MostRules  = 20_000 // of both directions
	MostPeers  = 20_000 // of all its rules
	MostRanges = 20_000 // blocks and their exceptions
	MostPorts  = 20_000 // of all its rules
	MostKeys   = 64     // keys of labels that its selectors name

	// MostOverlaps limits pairs of a block and a range in it, of a block or an exception: 40 ms and 20 MB.
	MostOverlaps = 1 << 18
	// MostWork limits the work of compiling all that is in force on a node: some seconds and 200 MB. Each of these counts
	// 1 in a rule set: an identity that a rule matches, a block or a rule of a NetworkPolicy with this identity, a rule
	// of a combination.
	MostWork = 1 << 22
)

// LimitError means that a limit is exceeded.
type LimitError struct {
	// Namespace is set if the limit is one of a namespace's NetworkPolicies.
	Namespace string
	// Largest is the policy with the most peers and ports if the limit is one of all policies of a node, else empty.
	Largest       Origin
	What          string
	Number, Limit int
}

// Error returns "namespace shop: 9,114 of 8,192 verdict rows".
func (e *LimitError) Error() string {
	text := fmt.Sprintf("%s of %s %s", grouped(e.Number), grouped(e.Limit), e.What)
	switch {
	case e.Namespace != "":
		return "namespace " + e.Namespace + ": " + text
	case e.Largest != Origin{}:
		return "all policies of the node: " + text + ", the largest is " + e.Largest.String()
	}
	return text
}

func exceeded(all []LimitError) *LimitError {
	for _, e := range all {
		if e.Number > e.Limit {
			return &e
		}
	}
	return nil
}

// grouped returns a number with commas between thousands.
func grouped(n int) string {
	text := strconv.Itoa(n)
	for at := len(text) - 3; at > 0; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return text
}

func (p *Policy) size() (rules, peers, ranges, ports int) {
	for _, r := range p.allRules {
		rules, peers, ports = rules+1, peers+len(r.Peers), ports+len(r.Ports)
		for _, peer := range r.Peers {
			if peer.Block != nil {
				ranges += 1 + len(peer.Block.Except)
			}
		}
	}
	return rules, peers, ranges, ports
}

func (p *Policy) validateSize() error {
	rules, peers, ranges, ports := p.size()
	keys := map[string]bool{}
	for _, s := range p.selectors {
		s.keysTo(keys)
	}
	delete(keys, NamespaceLabel) // most policies have it
	if e := exceeded([]LimitError{
		{What: "peers of rules", Number: peers, Limit: MostPeers}, {What: "rules", Number: rules, Limit: MostRules},
		{What: "ranges of addresses", Number: ranges, Limit: MostRanges},
		{What: "ports of rules", Number: ports, Limit: MostPorts},
		{What: "label keys in selectors", Number: len(keys), Limit: MostKeys},
	}); e != nil {
		return fmt.Errorf("spec: %w", e)
	}
	return nil
}
