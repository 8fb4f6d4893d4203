// SPDX-License-Identifier: Apache-2.0

package shed

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"time"

	"mustang/internal/datapath/policies"
	"mustang/internal/kube"
	"mustang/internal/policy"
)

// hold takes the rules of the policies that there was no room for a moment ago, and of those that have come or changed in their namespaces.
func (s *Shedder) hold(want *policies.Set) (full []kube.Warning) {
	if s.Retry = false; time.Since(s.tried) >= Hold {
		s.of, s.isolated, s.unknown, s.together = nil, nil, nil, false
	}
	changed := len(s.of)+len(s.unknown) > 0 && s.sum != s.sumOf(want.Snapshot)
	s.held = map[policy.Digest]bool{}
	gone := map[policy.Digest]bool{}
	for _, known := range s.of {
		for id, why := range known {
			gone[id] = why != ""
		}
	}
	for i := range want.Policies {
		p := &want.Policies[i]
		known := s.of[p.Namespace]
		if known == nil || p.Tier != policy.Namespaced || p.Bulk() == 0 && s.isolated[p.Namespace] == "" {
			continue
		}
		id := p.Digest()
		why, tried := known[id]
		if delete(gone, id); !tried {
			why = "no rules of it are in force: there was no room for all of its namespace, which are tried again within a minute"
			s.held[id], s.Retry = true, true
		}
		if why != "" {
			full = append(full, noRoom(p, why))
			p.Strip()
		}
	}
	for _, hadNoRules := range gone {
		s.Retry = s.Retry || hadNoRules
	}
	isolateAll(want, s.isolated, s.together)
	before := want.Previous
	want.Previous = s.Others
	full = append(full, forget(want, s.unknown)...)
	want.Previous = before
	s.Retry = s.Retry || changed && len(full)+len(s.unknown) > 0 // what takes the room may have gone
	return full
}

// sumOf tells apart what there may be room for.
func (s *Shedder) sumOf(all policy.Snapshot) uint64 {
	sum := sumOf(all.Policies) + sumOf(s.Others)
	for i := range all.Pods {
		id := all.Pods[i].Digest()
		sum += binary.LittleEndian.Uint64(id[:])
	}
	text, _ := json.Marshal([]any{all.Nodes, all.Namespaces})
	id := sha256.Sum256(text)
	return sum + binary.LittleEndian.Uint64(id[:])
}

// sumOf tells sets of policies apart.
func sumOf(all []policy.Policy) (sum uint64) {
	for i := range all {
		id := all[i].Digest()
		sum += binary.LittleEndian.Uint64(id[:])
	}
	return sum
}

// note remembers which of the policies that were tried have no rules in force: those taken now, and those that are held.
func (s *Shedder) note(all policy.Snapshot, taken []kube.Warning, forgotten int) {
	if s.of == nil {
		s.tried, s.of = time.Now(), map[string]map[policy.Digest]string{}
	}
	if len(taken)+forgotten > 0 {
		s.Retry, s.again, s.sum = s.Retry || !s.again, true, s.sumOf(all)
	}
	tried := all.Policies
	why := map[[2]string]string{}
	for _, w := range taken {
		if why[[2]string{w.Namespace, w.Name}] = w.Text; s.of[w.Namespace] == nil {
			s.of[w.Namespace] = map[policy.Digest]string{}
		}
	}
	for i := range tried {
		p := &tried[i]
		if known := s.of[p.Namespace]; known != nil && p.Tier == policy.Namespaced {
			id := p.Digest()
			if text, ok := why[[2]string{p.Namespace, p.Name}]; ok {
				known[id] = text
			} else if _, ok := known[id]; !ok && !s.held[id] {
				known[id] = ""
			}
		}
	}
}
