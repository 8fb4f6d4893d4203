// SPDX-License-Identifier: Apache-2.0

package result

import (
	"bytes"

	"github.com/go-json-experiment/json/jsontext"
)

// Limits of the text of a file. A list of three bytes an entry decodes to structs that are a hundred times as large, so
// that the limits of lists would come too late.
const (
	maxValues  = 4_000_000
	maxEntries = 200_000 // of all lists, numbers not counted
	maxDepth   = 100
)

// extent is how much memory a JSON text takes to decode.
type extent struct{ bytes, depth, values, entries, longest int }

// err returns an error if the text exceeds a limit.
func (e extent) err() error {
	var p faults
	_ = p.most("bytes", e.bytes, maxBytes) && p.most("levels", e.depth, maxDepth) &&
		p.most("values", e.values, maxValues) && p.most("entries of lists", e.entries, maxEntries) &&
		p.most("entries of a list", e.longest, MaxSamples)
	return p.err()
}

// filledBy returns how much of a reader's limits the text of a file takes: from 1 on, [Read] may refuse it.
func filledBy(text []byte) float64 {
	e := scan(text)
	return max(float64(e.bytes)/maxBytes, float64(e.values)/maxValues, float64(e.entries)/maxEntries)
}

// scan measures a JSON text up to the first limit or error of syntax.
func scan(text []byte) extent {
	e := extent{bytes: len(text)}
	decoder := jsontext.NewDecoder(bytes.NewBuffer(text), jsontext.AllowDuplicateNames(true),
		jsontext.AllowInvalidUTF8(true))
	for e.depth <= maxDepth && e.values <= maxValues {
		token, err := decoder.ReadToken()
		if err != nil {
			break
		}
		depth := decoder.StackDepth()
		e.depth = max(e.depth, depth)
		switch token.Kind() {
		case ']', '}':
			continue
		case '[', '{':
			depth-- // of what holds it
		}
		e.values++
		if kind, length := decoder.StackIndex(depth); kind == '[' {
			e.longest = max(e.longest, int(length))
			if token.Kind() != '0' {
				e.entries++
			}
		} else if length%2 == 1 { // a member's name
			e.values--
		}
	}
	return e
}
