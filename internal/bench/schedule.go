// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"math/rand/v2"
	"time"
)

// order returns the order in which n rows run in a round: a permutation that
// the seed and the round's number (from 0) decide, so that a run can be
// repeated, and no row always follows the same other.
func order(seed uint64, round, n int) []int {
	return rand.New(rand.NewPCG(seed, uint64(round))).Perm(n)
}

// pace estimates how long the rest of a run takes.
type pace struct {
	total   int
	each    time.Duration // what a sample should take
	started time.Time
	done    int
}

// left returns the time that the remaining samples take: at first by what a
// sample should take, later by what samples took so far.
func (p pace) left(now time.Time) time.Duration {
	remaining := time.Duration(max(p.total-p.done, 0))
	if p.done == 0 {
		return max(remaining*p.each-now.Sub(p.started), 0)
	}
	return remaining * (now.Sub(p.started) / time.Duration(p.done))
}

// complete sets what is done to a share of the whole, for samples that fell
// away with their row.
func (p *pace) complete(part, whole int) {
	if whole > 0 {
		p.done = p.total * part / whole
	}
}
