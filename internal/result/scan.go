// SPDX-License-Identifier: Apache-2.0

package result

import "slices"

// Limits of the text of a file. A list of three bytes an entry decodes to structs that are a hundred times as large, so that
// the limits of lists would come too late.
const (
	maxValues  = 4_000_000
	maxEntries = 200_000 // of all lists, numbers not counted
	maxDepth   = 100
)

// scan returns the problems of a JSON text that would take too much memory to decode. It does not check the syntax.
func scan(text []byte) []string {
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
	return slices.Concat(limit("levels", len(lengths), maxDepth), limit("values", values, maxValues), limit("entries of lists", entries, maxEntries),
		limit("entries of a list", longest, MaxSamples))
}
