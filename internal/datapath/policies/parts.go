// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"crypto/sha256"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	"mustang/internal/datapath/objects"
	"mustang/internal/policy"
	"mustang/internal/service"
)

// What an owner says is stored in parts, so that a change writes those anew in which something differs: policies and pods are in the
// part that their names give. The first part has what is left, and names the revisions of the others.
const (
	piecesOfPart = 1 << 20
	mostParts    = 64
	perPart      = 16 // policies and pods, until there are as many parts as can be
)

// root is the first part.
type root struct {
	Set
	Parts []part
}

// part is a part of a revision that may be older.
type part struct {
	Revision, Length uint32
	digest           [sha256.Size]byte // of what is in it
}

// content is what an owner says, with what tells it from others.
type content struct {
	now      Set
	parts    []part
	shares   []share // what is in each part
	policies map[name]policy.Digest
}

// share is what a part has.
type share struct {
	Policies []policy.Policy `json:",omitempty"`
	Pods     []policy.Pod    `json:",omitempty"`
}

// newContent divides a set. What it returns has policies and pods in the order that a reader finds them in.
func newContent(s Set) content {
	n := 1
	for n < mostParts && n*perPart < len(s.Policies)+len(s.Pods) {
		n *= 2
	}
	c := content{parts: make([]part, n), shares: make([]share, n), policies: make(map[name]policy.Digest, len(s.Policies))}
	digests := make([][]byte, n)
	at := func(kind, namespace, name string) int {
		h := fnv.New32a()
		_, _ = h.Write([]byte(kind + namespace + "/" + name))
		return int(h.Sum32()>>16) % n
	}
	for i := range s.Policies {
		p := &s.Policies[i]
		in, d := at("policy", p.Namespace, p.Name), p.Digest()
		c.shares[in].Policies = append(c.shares[in].Policies, *p)
		digests[in] = append(digests[in], d[:]...)
		c.policies[nameOf(p)] = d
	}
	for i := range s.Pods {
		p := &s.Pods[i]
		in, d := at("pod", p.Namespace, p.Name), p.Digest()
		c.shares[in].Pods = append(c.shares[in].Pods, *p)
		digests[in] = append(digests[in], d[:]...)
	}
	for i, d := range digests {
		c.parts[i].digest = sha256.Sum256(d)
	}
	c.now = s
	c.join()
	return c
}

// join puts together what the parts have, which is kept once.
func (c *content) join() {
	policies, pods := make([]policy.Policy, 0, len(c.now.Policies)), make([]policy.Pod, 0, len(c.now.Pods))
	for i := range c.shares {
		s, fromPolicy, fromPod := &c.shares[i], len(policies), len(pods)
		policies, pods = append(policies, s.Policies...), append(pods, s.Pods...)
		s.Policies, s.Pods = policies[fromPolicy:], pods[fromPod:]
	}
	c.now.Policies, c.now.Pods = policies, pods
}

// rest is what is in the first part alone.
func (c *content) rest() Set {
	s := c.now
	s.Policies, s.Pods = nil, nil
	return s
}

// equal reports whether two say the same.
func (c *content) equal(d *content) bool {
	return slices.EqualFunc(c.parts, d.parts, func(a, b part) bool { return a.digest == b.digest }) && same(c.rest(), d.rest())
}

// content reads what an owner says.
func (p pieces) content(key documentKey, h head) (content, error) {
	var first root
	if err := p.decode(key, h, &first); err != nil {
		return content{}, err
	}
	for i, at := range first.Parts {
		var s share
		from := key
		from.Piece = uint32(i+1) * piecesOfPart
		if err := p.decode(from, head{revision: at.Revision, length: at.Length}, &s); err != nil {
			return content{}, fmt.Errorf("part %d: %w", i, err)
		}
		first.Policies, first.Pods = append(first.Policies, s.Policies...), append(first.Pods, s.Pods...)
	}
	c := newContent(first.Set)
	if len(first.Parts) == len(c.parts) {
		for i, at := range first.Parts {
			c.parts[i].Revision, c.parts[i].Length = at.Revision, at.Length
		}
	}
	return c, nil
}

// parts returns the revisions of a document's parts, by number.
func (p pieces) parts(key documentKey, h head) (map[uint32]uint32, error) {
	out := map[uint32]uint32{0: h.revision}
	if key.Kind != ofOwner {
		return out, nil
	}
	var first root
	err := p.decode(key, h, &first)
	for i, at := range first.Parts {
		out[uint32(i+1)] = at.Revision
	}
	return out, err
}

// packContent returns a function that stores what an owner says: the parts that differ from those of before, and the first one. The revision before stays; gone
// are the keys of pieces that are of that one alone. The error is a *FullError if there is no room.
func (p Policies) packContent(d documents, owner service.Owner, was, now *content) (put func() error, gone []documentKey, err error) {
	key := documentKey{Kind: ofOwner, ID: uint32(owner)}
	old := d.heads[key]
	h := head{revision: old.next(), before: old.revision, lengthBefore: old.length}
	if old.before != 0 { // a killed process has not enforced the last revision
		h.before, h.lengthBefore = old.before, old.lengthBefore
	}
	piece := func(part int, revision uint32) documentKey {
		return documentKey{key.Kind, key.ID, revision, uint32(part) * piecesOfPart}
	}
	drop := func(at documentKey, length uint32) { gone = append(gone, at.pieces(length)...) }
	var all packed
	for i := range now.parts {
		at := &now.parts[i]
		if len(was.parts) == len(now.parts) && was.parts[i].digest == at.digest && was.parts[i].Revision != 0 {
			*at = was.parts[i]
			continue
		}
		at.Revision = h.revision
		if at.Length, err = all.add(piece(i+1, h.revision), now.shares[i]); err != nil {
			return nil, nil, err
		}
	}
	for i, at := range was.parts {
		if at.Revision != 0 && (i >= len(now.parts) || now.parts[i].Revision != at.Revision) {
			drop(piece(i+1, at.Revision), at.Length)
		}
	}
	drop(piece(0, old.revision), old.length)
	if h.length, err = all.add(piece(0, h.revision), root{now.rest(), now.parts}); err != nil {
		return nil, nil, err
	}
	n, had := piecesOf(h.length), piecesOf(old.length)
	for _, at := range now.parts {
		n += piecesOf(at.Length)
	}
	for _, at := range was.parts {
		had += piecesOf(at.Length)
	}
	if most := uint32(p.mostPieces()); n > max(most, had) { // an older map may have more
		return nil, nil, &objects.FullError{Map: documentsMap, Size: most}
	}
	put = func() error {
		d.heads[key] = h
		return p.publish(key, h, all)
	}
	return put, gone, nil
}

// count counts the policies that differ.
func (r *Result) count(have, want *content) {
	for n, d := range want.policies {
		was, ok := have.policies[n]
		switch {
		case !ok:
			r.Added++
		case was == d:
			r.Unchanged++
		default:
			r.Updated++
		}
	}
	for n := range have.policies {
		if _, ok := want.policies[n]; !ok {
			r.Gone = append(r.Gone, strings.TrimPrefix(n.namespace+"/"+n.name, "/"))
		}
	}
	slices.Sort(r.Gone)
	r.Deleted = len(r.Gone)
	if have.now.Audit != want.now.Audit && r.Updated+r.Unchanged > 0 {
		r.Audit = &want.now.Audit
	}
}

// name tells policies apart.
type name struct {
	tier            policy.Tier
	namespace, name string
}

func nameOf(p *policy.Policy) name { return name{p.Tier, p.Namespace, p.Name} }
