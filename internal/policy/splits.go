// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
)

// identified compiles some policies as far as identities.
func (s *Snapshot) identified(policies []Policy) *Compiler {
	own := *s
	own.Policies, own.Previous = policies, nil
	c := NewCompiler(Rows{})
	touched, pods := map[netip.Prefix]bool{}, c.placePods(&own)
	if c.enter(&own) == nil {
		c.selectPods(pods)
		c.begin(0)
		c.activate(pods)
		c.placePeers(touched)
		c.identify(touched)
	}
	return c
}

// mostWithout is how many namespaces are left out in turn, those whose labels tell most apart by themselves.
const mostWithout = 8

// splits returns how many identities of pods and nodes fewer there were without the blocks of each namespace that nobody else has, and without the policies
// of those whose labels tell most apart: they tell apart as many times as others do already.
func (s *Snapshot) splits(bills map[string]bill) map[string]int {
	c := s.identified(s.Policies)
	hosts := c.identitiesOfHosts()
	fewer := c.withoutBlocks(s, hosts)
	names := slices.SortedFunc(maps.Keys(bills), func(a, b string) int {
		return cmp.Or(cmp.Compare(bills[b].brings[1], bills[a].brings[1]), cmp.Compare(a, b))
	})
	for _, namespace := range names[:min(mostWithout, len(names))] {
		if namespace == "" || 8*bills[namespace].brings[1] > 7*len(hosts) {
			continue // by itself
		}
		left := slices.DeleteFunc(slices.Clone(s.Policies), func(p Policy) bool { return p.Tier == Namespaced && p.Namespace == namespace })
		fewer[namespace] = max(fewer[namespace], len(hosts)-len(s.identified(left).identitiesOfHosts()))
	}
	return fewer
}

// identitiesOfHosts returns the identities of pods and nodes.
func (c *Compiler) identitiesOfHosts() (all []*identity) {
	for _, i := range c.identities {
		if i.content != nil {
			all = append(all, i)
		}
	}
	return all
}

// withoutBlocks returns how many of the identities of a snapshot fewer there were without the blocks of each namespace.
func (c *Compiler) withoutBlocks(s *Snapshot, hosts []*identity) map[string]int {
	owner := map[*block]string{}
	for i, here := range s.Here() {
		p := &s.Policies[i]
		if !here {
			continue
		}
		p.blocks(func(b *Block) {
			if of := c.blocks.byKey[b.key()]; of != nil {
				if was, known := owner[of]; known && was != p.Namespace {
					owner[of] = "" // of several, or the cluster's
				} else {
					owner[of] = p.Namespace
				}
			}
		})
	}
	of := map[string]bool{}
	for _, i := range hosts {
		if i.in != nil {
			for _, b := range i.in.blocks {
				of[owner[b]] = true
			}
		}
	}
	delete(of, "")
	fewer := map[string]int{}
	for namespace := range of {
		fewer[namespace] = len(hosts) - without(hosts, func(b *block) bool { return owner[b] == namespace })
	}
	return fewer
}

// without returns how many identities there were without some blocks.
func without(all []*identity, gone func(*block) bool) int {
	type key struct {
		*content
		in Digest
	}
	left, covers := map[key]struct{}{}, map[*cover]Digest{nil: {}}
	for _, i := range all {
		in, known := covers[i.in]
		if !known {
			f, some := newForm("cover"), false
			for _, b := range i.in.blocks {
				if !gone(b) {
					some = true
					f.text(b.key)
				}
			}
			if some {
				in = f.digest()
			}
			covers[i.in] = in
		}
		left[key{i.content, in}] = struct{}{}
	}
	return len(left)
}
