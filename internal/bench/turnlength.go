// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"time"

	"mustang/internal/load"
	"mustang/internal/result"
)

// Lengths of turns. The shorter they are, the closer lie those that are compared, and the
// more of them there are, of which the middle half ignores those that were interrupted.
const (
	kernelSlice = time.Millisecond
	// slowSlice is the length where a path carries little in a millisecond, or a program in
	// user space forwards packets, which works in bursts.
	slowSlice = 10 * time.Millisecond
	// shapedSlice is the length where a wire has a rate: its bucket holds a millisecond of
	// it, which a turn's lead empties.
	shapedSlice = 50 * time.Millisecond
	// delaysPerSlice is the number of a wire's delays that a turn holds: tens of
	// transactions.
	delaysPerSlice = 100
	// requestsPerSlice is the number of requests of a fixed rate that a turn holds at least.
	requestsPerSlice = 2
)

// slowEvery is the number of rounds in one of which a path through user space takes part: its
// turns are ten times as long, and other paths need the time more.
const slowEvery = 8

// setTurn sets the length of a row's turns, and the number of rounds in one of which it takes
// part, unless they are known.
func (o Options) setTurn(row *measuredRow) {
	if row.slice > 0 {
		return
	}
	row.slice, row.every = o.turn(row)
	row.row.SliceSeconds = row.slice.Seconds()
}

// turn returns the length of a row's turns, or that of the options, and the number of rounds in one
// of which it takes part.
func (o Options) turn(row *measuredRow) (length time.Duration, every int) {
	wire, workload, class := row.spec.path.Lab, row.spec.workload, row.class()
	length, every = kernelSlice, 1
	switch {
	case o.Slice > 0:
		return o.Slice, 1
	case wire.WireRate > 0, wire.WireDelay > 0:
		length = max(shapedSlice, delaysPerSlice*wire.WireDelay)
	case class == result.ClassUserSpace, class == result.ClassGuests:
		length, every = slowSlice, slowEvery
	case class == result.ClassTwoCPUs, workload.Name == load.UDPStream, workload.Setup.Paced():
		length = slowSlice
	}
	if rate := workload.Setup.Rate; rate > 0 {
		length = max(length, requestsPerSlice*time.Second/time.Duration(rate))
	}
	return min(length, maxSlice), every
}
