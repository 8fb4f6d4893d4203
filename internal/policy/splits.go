// SPDX-License-Identifier: Apache-2.0

package policy

import "net/netip"

// splits returns how many identities of pods and nodes fewer there were without the blocks of each namespace that nobody else has: blocks around pods tell
// apart what labels do not, and as many times as labels tell them apart already.
func (s *Snapshot) splits() map[string]int {
	own := *s
	own.Previous = nil
	c := NewCompiler(Rows{})
	touched, pods := map[netip.Prefix]bool{}, c.placePods(&own)
	if c.enter(&own) != nil {
		return nil
	}
	c.selectPods(pods)
	c.begin(0)
	c.activate(pods)
	c.placePeers(touched)
	c.identify(touched)
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
	var hosts []*identity
	of := map[string]bool{}
	for _, i := range c.identities {
		if i.content == nil {
			continue
		}
		hosts = append(hosts, i)
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
