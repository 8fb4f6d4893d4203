// SPDX-License-Identifier: Apache-2.0

// Package suggest finds the word that somebody meant who mistyped it.
package suggest

import (
	"slices"
	"strings"

	"github.com/agext/levenshtein"
)

// Text returns the end of an error message about an unknown word: "; did you mean pod-links?". It is empty if all
// words of known differ more.
func Text(word string, known []string) string {
	near := Near(word, known)
	if len(near) == 0 {
		return ""
	}
	return "; did you mean " + strings.Join(near, " or ") + "?"
}

const most = 3 // how many words are suggested

// Near returns the words of known that differ least from a word, in their order and at most three. They differ by
// two letters, half of a short word or a third of a long one, or begin with it. Their first letters are the same.
func Near(word string, known []string) []string {
	word = strings.ToLower(word)
	start := word[:min(len(word), 1+len(word)-len(strings.TrimLeft(word, "-")))]
	var near []string
	best := max(min(2, len(word)/2), len(word)/3) + 1
	for _, k := range known {
		distance := levenshtein.Distance(word, strings.ToLower(k), nil)
		if len(word) >= 3 && strings.HasPrefix(strings.ToLower(k), word) {
			distance = 1
		}
		switch {
		case !strings.HasPrefix(strings.ToLower(k), start):
		case distance > best || slices.Contains(near, k):
		case distance < best:
			near, best = []string{k}, distance
		case len(near) > 0 && len(near) < most:
			near = append(near, k)
		}
	}
	return near
}
