// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"mustang/internal/policy"
	"mustang/internal/service"
)

// Kinds of documents.
const (
	ofOwner    = uint32(1) // what an owner says: a Set
	ofEndpoint = uint32(2) // the pod of an endpoint: a policy.Pod without addresses
	ofMark     = uint32(3) // rows may be behind the documents
)

var markKey = documentKey{Kind: ofMark}

// head is the piece that names the others. While rows are behind, it names those of the revision before too.
type head struct{ revision, length, before, lengthBefore uint32 }

func decodeHead(p documentPiece) head {
	u := func(i int) uint32 { return binary.LittleEndian.Uint32(p[4*i:]) }
	return head{u(0), u(1), u(2), u(3)}
}

func (h head) encode() (p documentPiece) {
	for i, v := range []uint32{h.revision, h.length, h.before, h.lengthBefore} {
		binary.LittleEndian.PutUint32(p[4*i:], v)
	}
	return p
}

// documents are all documents of a datapath.
type documents struct {
	sets    map[service.Owner]set
	pods    map[uint32]policy.Pod // by endpoint
	heads   map[documentKey]head
	keys    []documentKey // of all pieces but heads
	pending bool
}

// set is what an owner says, and what it said before as long as rows are behind.
type set struct {
	now    Set
	before []policy.Policy // nil: rows are not behind
}

// with returns documents that have another set of an owner.
func (d documents) with(owner service.Owner, s Set) documents {
	d.sets = maps.Clone(d.sets)
	was := d.sets[owner]
	if was.before == nil {
		was.before = append([]policy.Policy{}, was.now.Policies...)
	}
	d.sets[owner] = set{now: s, before: was.before}
	return d
}

// owners returns the owners in the order in which their policies are assembled.
func (d documents) owners() []service.Owner { return slices.Sorted(maps.Keys(d.sets)) }

// audit reports whether policies are only audited.
func (d documents) audit() bool {
	audit := false
	for _, s := range d.sets {
		if len(s.now.Policies) > 0 {
			if !s.now.Audit {
				return false
			}
			audit = true
		}
	}
	return audit
}

// read reads all documents. It needs no lock but to see one state of all.
func (p Policies) read() (documents, error) {
	d, pieces, err := p.scan()
	if err != nil {
		return d, err
	}
	for key, h := range d.heads {
		var err error
		switch key.Kind {
		case ofOwner:
			var s, before Set
			err = pieces.decode(key, h, &s)
			if err == nil && h.before != 0 {
				err = pieces.decode(key, head{revision: h.before, length: h.lengthBefore}, &before)
				before.Policies = append([]policy.Policy{}, before.Policies...)
			}
			d.sets[service.Owner(key.ID)] = set{s, before.Policies}
		case ofEndpoint:
			var pod policy.Pod
			err = pieces.decode(key, h, &pod)
			d.pods[key.ID] = pod
		}
		if err != nil {
			return d, fmt.Errorf("read policies: %w", err)
		}
	}
	return d, nil
}

// scan reads the rows of all documents, and decodes none but heads.
func (p Policies) scan() (documents, pieces, error) {
	d := documents{sets: map[service.Owner]set{}, pods: map[uint32]policy.Pod{}, heads: map[documentKey]head{}}
	pieces := pieces{}
	if err := p.Objects.OpenTables(); err != nil {
		return d, pieces, err
	}
	var first documentKey
	if p.tables().documents.Map.NextKey(nil, &first) != nil {
		return d, pieces, nil // as on most nodes
	}
	for row, err := range p.tables().documents.All() {
		switch {
		case err != nil:
			return d, pieces, err
		case row.Key.Kind == ofMark:
			d.pending = true
		case row.Key.Revision == 0:
			d.heads[row.Key] = decodeHead(row.Value)
		default:
			pieces[row.Key] = row.Value
			d.keys = append(d.keys, row.Key)
		}
	}
	return d, pieces, nil
}

// pieces are those of all documents but heads.
type pieces map[documentKey]documentPiece

// decode decodes a document.
func (p pieces) decode(key documentKey, h head, to any) error {
	var data []byte
	for key.Revision = h.revision; uint32(len(data)) < h.length; key.Piece++ {
		piece, ok := p[key]
		if !ok {
			return errors.New("a piece is missing")
		}
		data = append(data, piece[:min(len(piece), int(h.length)-len(data))]...)
	}
	r := flate.NewReader(bytes.NewReader(data))
	text, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, to)
}

// put stores a document: its pieces, then the head. The revision before stays if it is to be kept.
func (p Policies) put(d documents, key documentKey, document any, keep bool) error {
	text, err := json.Marshal(document)
	if err != nil {
		return err
	}
	var packed bytes.Buffer
	w, _ := flate.NewWriter(&packed, flate.BestSpeed)
	_, _ = w.Write(text)
	if err := w.Close(); err != nil {
		return err
	}
	old := d.heads[key]
	h := head{revision: max(old.revision, old.before) + 1, length: uint32(packed.Len())}
	if keep {
		h.before, h.lengthBefore = old.revision, old.length
		if old.before != 0 { // a killed process has not enforced the last revision
			h.before, h.lengthBefore = old.before, old.lengthBefore
		}
	}
	var keys []documentKey
	var pieces []documentPiece
	at := key
	at.Revision = h.revision
	for packed.Len() > 0 {
		var piece documentPiece
		copy(piece[:], packed.Next(len(piece)))
		keys, pieces = append(keys, at), append(pieces, piece)
		at.Piece++
	}
	table := p.tables().documents
	if _, err := table.PutBatch(keys, pieces); err != nil {
		return errors.Join(err, table.DeleteBatch(keys))
	}
	return table.Put(key, h.encode())
}

// mark says that rows may be behind the documents.
func (p Policies) mark() error {
	return p.tables().documents.Put(markKey, documentPiece{})
}

// finish forgets the revisions before, deletes pieces of none, and takes the mark away, if rows are no longer behind.
func (p Policies) finish(done bool) error {
	if !done {
		return nil
	}
	d, _, err := p.scan()
	if err != nil {
		return err
	}
	table := p.tables().documents
	for key, h := range d.heads {
		if h.before != 0 {
			h.before, h.lengthBefore = 0, 0
			if err := table.Put(key, h.encode()); err != nil {
				return err
			}
			d.heads[key] = h
		}
	}
	endpoints := map[uint32]bool{}
	for row, err := range p.Objects.Endpoints.All() {
		if err != nil {
			return err
		}
		endpoints[row.Value.Id] = true
	}
	for key := range d.heads {
		if key.Kind == ofEndpoint && !endpoints[key.ID] { // whoever added or deleted it was killed
			if err := table.Delete(key); err != nil {
				return err
			}
			delete(d.heads, key)
		}
	}
	var gone []documentKey
	for _, key := range d.keys {
		at := documentKey{Kind: key.Kind, ID: key.ID}
		if h, ok := d.heads[at]; !ok || h.revision != key.Revision {
			gone = append(gone, key)
		}
	}
	return errors.Join(table.DeleteBatch(gone), table.Delete(markKey))
}
