// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"crypto/sha256"
	"encoding/json"
	"slices"
)

// numbers gives a number to each thing that rows refer to. What had one keeps it, and a number that was in use is not given
// to anything else, so that rows of before and after can be side by side.
type numbers struct {
	have, want map[Digest]uint32
	taken      map[uint32]bool
	last       uint32
}

func newNumbers(have map[Digest]uint32) *numbers {
	n := &numbers{have: have, want: map[Digest]uint32{}, taken: make(map[uint32]bool, len(have))}
	for _, number := range have {
		n.taken[number] = true
	}
	return n
}

// of returns the number of what a key describes, and whether the key is new here.
func (n *numbers) of(kind string, key []byte) (number uint32, fresh bool) {
	d := digest(kind, key)
	if number, ok := n.want[d]; ok {
		return number, false
	}
	number, ok := n.have[d]
	if !ok {
		for n.last++; n.taken[n.last]; n.last++ {
		}
		number = n.last
	}
	n.want[d] = number
	return number, true
}

func digest(kind string, key []byte) Digest {
	sum := sha256.Sum256(slices.Concat([]byte(kind), []byte{0}, key))
	return Digest(sum[:16])
}

// canonical returns a form that is equal for equal values: encoding/json sorts maps.
func canonical(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err) // the types of this package have no value without a form
	}
	return data
}
