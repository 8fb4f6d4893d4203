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
	"net/netip"
	"slices"

	"mustang/internal/policy"
	"mustang/internal/service"
)

// Kinds of documents.
const (
	ofOwner    = uint32(1) // what an owner says: a Set
	ofEndpoint = uint32(2) // the pod of an endpoint: a policy.Pod without addresses
	ofMark     = uint32(3) // rows may be behind the documents
	ofTurn     = uint32(4) // how often a process has begun to change something, so that another finds out
)

var (
	markKey = documentKey{Kind: ofMark}
	turnKey = documentKey{Kind: ofTurn}
)

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
	joining map[netip.Addr]uint32 // endpoints that have no row yet, by address
	node    []netip.Addr          // addresses of this node; nil: not known yet
}

// set is what an owner says, and what it said before as long as rows are behind.
type set struct {
	content
	before *Set // nil: rows are not behind
}

// with returns documents that have another set of an owner.
func (d documents) with(owner service.Owner, now content) documents {
	d.sets = maps.Clone(d.sets)
	was := d.sets[owner]
	if was.before == nil {
		was.before = &was.now
	}
	d.sets[owner] = set{now, was.before}
	return d
}

// without returns documents that know no policies of before, as they are once rows are not behind.
func (d documents) without() documents {
	sets := map[service.Owner]set{}
	for owner, s := range d.sets {
		sets[owner] = set{content: s.content}
	}
	d.sets, d.pending = sets, false
	return d
}

// owners returns the owners in the order in which their policies are assembled.
func (d documents) owners() []service.Owner { return slices.Sorted(maps.Keys(d.sets)) }

// trusted returns the owners of whom the first is right where they say different things of an address: the agent is before the
// command line.
func (d documents) trusted() []service.Owner {
	owners := d.owners()
	slices.Reverse(owners)
	return owners
}

// current returns what an owner has stored, and previous what the rows follow as long as they are behind.
func (s set) current() Set { return s.now }

func (s set) previous() Set {
	if s.before != nil {
		return *s.before
	}
	return s.now
}

// enforcedBy returns an owner whose policies are enforced, other than one of them; 0: there is none.
func (d documents) enforcedBy(but service.Owner, of func(set) Set) service.Owner {
	for _, owner := range d.owners() {
		if s := of(d.sets[owner]); owner != but && len(s.Policies) > 0 && !s.Audit {
			return owner
		}
	}
	return 0
}

// inForce returns the policies that hold. A verdict is that of all of them together, so those that their owner only audits are left
// out while those of another are enforced: they never drop a packet.
func (d documents) inForce(of func(set) Set) (all []policy.Policy) {
	enforced := d.enforcedBy(0, of) != 0
	for _, owner := range d.owners() {
		if s := of(d.sets[owner]); !enforced || !s.Audit {
			all = append(all, s.Policies...)
		}
	}
	return all
}

// audit reports whether policies are only audited.
func (d documents) audit() bool {
	return d.enforcedBy(0, set.current) == 0 && len(d.inForce(set.current)) > 0
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
			var s set
			s.content, err = pieces.content(key, h)
			if err == nil && h.before != 0 {
				var was content
				was, err = pieces.content(key, head{revision: h.before, length: h.lengthBefore})
				s.before = &was.now
			}
			d.sets[service.Owner(key.ID)] = s
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
		case row.Key.Kind == ofTurn:
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

// decode decodes a document, or a part of one, whose first piece key names but for the revision.
func (p pieces) decode(key documentKey, h head, to any) error {
	var data []byte
	for key.Revision = h.revision; uint32(len(data)) < h.length; key.Piece++ {
		piece, ok := p[key]
		if !ok {
			return errors.New("a piece is missing")
		}
		data = append(data, piece[:min(len(piece), int(h.length)-len(data))]...)
	}
	text, err := io.ReadAll(flate.NewReader(bytes.NewReader(data)))
	if err != nil {
		return err
	}
	return json.Unmarshal(text, to)
}

// packed are pieces to write.
type packed struct {
	keys   []documentKey
	pieces []documentPiece
}

// add adds the pieces of a document, or of a part of one, of which key names the first. It returns the document's length.
func (p *packed) add(key documentKey, document any) (length uint32, err error) {
	text, err := json.Marshal(document)
	if err != nil {
		return 0, err
	}
	var data bytes.Buffer
	w, _ := flate.NewWriter(&data, flate.BestSpeed)
	_, _ = w.Write(text)
	if err := w.Close(); err != nil {
		return 0, err
	}
	for length = uint32(data.Len()); data.Len() > 0; key.Piece++ {
		var piece documentPiece
		copy(piece[:], data.Next(len(piece)))
		p.keys, p.pieces = append(p.keys, key), append(p.pieces, piece)
	}
	return length, nil
}

// stored returns how many bytes it takes, about, to store a document, by itself.
func stored(document any) (int, error) {
	var all packed
	n, err := all.add(documentKey{}, document)
	return int(n), err
}

// next returns a revision that nothing has had.
func (h head) next() uint32 { return max(h.revision, h.before) + 1 }

// put stores a document.
func (p Policies) put(d documents, key documentKey, document any) error {
	var all packed
	h := head{revision: d.heads[key].next()}
	at := key
	at.Revision = h.revision
	var err error
	if h.length, err = all.add(at, document); err != nil {
		return err
	}
	d.heads[key] = h
	return p.publish(key, h, all)
}

// pieces returns the keys of the pieces of a document, or of a part of one, that begins with a key.
func (k documentKey) pieces(length uint32) (all []documentKey) {
	for end := k.Piece + piecesOf(length); k.Piece < end; k.Piece++ {
		all = append(all, k)
	}
	return all
}

// piecesOf returns how many pieces a length has.
func piecesOf(length uint32) uint32 { return (length + pieceSize - 1) / pieceSize }

// publish stores pieces of a document, then the head that names them.
func (p Policies) publish(key documentKey, h head, all packed) error {
	table := p.tables().documents
	if _, err := table.PutBatch(all.keys, all.pieces); err != nil {
		return errors.Join(err, table.DeleteBatch(all.keys))
	}
	return table.Put(key, h.encode())
}

// mark says that rows may be behind the documents, and that it is another process's turn.
func (p Policies) mark() error {
	turn, err := p.turn()
	if err != nil {
		return err
	}
	var next documentPiece
	binary.LittleEndian.PutUint64(next[:], turn+1)
	table := p.tables().documents
	return errors.Join(table.Put(turnKey, next), table.Put(markKey, documentPiece{}))
}

// turn returns how often a process has begun to change something.
func (p Policies) turn() (uint64, error) {
	row, _, err := p.tables().documents.Get(turnKey)
	return binary.LittleEndian.Uint64(row[:]), err
}

// settle does what finish does where this process alone has changed a set, and knows which pieces are of the revision before.
func (p Policies) settle(d documents, owner service.Owner, gone []documentKey) error {
	key := documentKey{Kind: ofOwner, ID: uint32(owner)}
	h := d.heads[key]
	h.before, h.lengthBefore = 0, 0
	table := p.tables().documents
	if err := table.Put(key, h.encode()); err != nil {
		return err
	}
	d.heads[key] = h
	return errors.Join(table.DeleteBatch(gone), table.Delete(markKey))
}

// finish forgets the revisions before, deletes pieces of none, and takes the mark away, if rows are no longer behind.
func (p Policies) finish(done bool) error {
	if !done {
		return nil
	}
	// A process that died may have switched rows and told no program: connections are judged by those of before.
	if err := p.Objects.NodeState.Invalidate(); err != nil {
		return err
	}
	d, pieces, err := p.scan()
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
	used := map[documentKey]bool{} // but for the piece
	for key, h := range d.heads {
		if key.Kind == ofEndpoint && !endpoints[key.ID] { // whoever added or deleted it was killed
			if err := table.Delete(key); err != nil {
				return err
			}
			continue
		}
		parts, err := pieces.parts(key, h)
		if err != nil {
			return err
		}
		for part, revision := range parts {
			used[documentKey{key.Kind, key.ID, revision, part}] = true
		}
	}
	var gone []documentKey
	for _, key := range d.keys {
		part := key
		if part.Piece /= piecesOfPart; !used[part] {
			gone = append(gone, key)
		}
	}
	return errors.Join(table.DeleteBatch(gone), table.Delete(markKey))
}
