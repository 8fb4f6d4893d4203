// SPDX-License-Identifier: Apache-2.0

package result

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
		p.most("values", e.values, maxValues) &&
		p.most("entries of lists", e.entries, maxEntries) && p.most("entries of a list", e.longest, MaxSamples)
	return p.err()
}

// filledBy returns how much of a reader's limits the text of a file takes: from 1 on, [Read] may refuse it.
func filledBy(text []byte) float64 {
	e := scan(text)
	return max(float64(e.bytes)/maxBytes, float64(e.values)/maxValues, float64(e.entries)/maxEntries)
}

// scan measures a JSON text, and ends where it is too large. It does not check the syntax.
func scan(text []byte) extent {
	values, entries, longest := 0, 0, 0
	var lengths []int // of the enclosing lists; -1 for an object
	begins := false   // an entry of a list begins here
	for i := 0; i < len(text) && len(lengths) <= maxDepth && values <= maxValues; i++ {
		c := text[i]
		switch c {
		case ' ', '\t', '\r', '\n':
			continue
		}
		if begins && c != ']' && c != '-' && (c < '0' || c > '9') {
			entries++
		}
		begins = false
		switch c {
		case '"':
			for i++; i < len(text) && text[i] != '"'; i++ {
				if text[i] == '\\' {
					i++
				}
			}
		case '[', '{':
			values++
			begins = c == '['
			if begins {
				lengths = append(lengths, 1)
			} else {
				lengths = append(lengths, -1)
			}
		case ']', '}':
			if len(lengths) > 0 {
				lengths = lengths[:len(lengths)-1]
			}
		case ',':
			values++
			if last := len(lengths) - 1; last >= 0 && lengths[last] > 0 {
				begins = true
				lengths[last]++
				longest = max(longest, lengths[last])
			}
		}
	}
	return extent{len(text), len(lengths), values, entries, longest}
}
