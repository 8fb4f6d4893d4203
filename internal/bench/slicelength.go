// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"slices"
	"time"

	"mustang/internal/bench/stats"
	"mustang/internal/lab"
	"mustang/internal/load"
	"mustang/internal/result"
)

// Lengths of turns. The shorter they are, the closer lie those that are compared, and the
// more of them there are, of which the median ignores those that were interrupted.
const (
	kernelSlice = time.Millisecond
	// slowSlice is the least length where a path carries little in a millisecond.
	slowSlice = 10 * time.Millisecond
	// shapedSlice is the length where a wire has a rate: its bucket holds a millisecond of
	// it, which a turn's lead empties.
	shapedSlice = 50 * time.Millisecond
	// delaysPerSlice is the number of a wire's delays that a turn holds: tens of
	// transactions.
	delaysPerSlice = 100
	// requestsPerSlice is the number of requests of a fixed rate that a turn holds at least.
	requestsPerSlice = 2
	// longestSlice bounds what a path's own rhythm asks for.
	longestSlice = 16
)

// A path shows its rhythm in so many slices, or as many as the time allows.
const (
	pilotSlices = 128
	pilotBatch  = 16
	pilotTime   = 300 * time.Millisecond
)

// A turn that takes longer than usualTurn, as the rest of a slow stream arrives late, is
// taken in fewer rounds, at least in one of mostRounds: other paths need the time more.
const (
	usualTurn  = 2 * time.Millisecond
	mostRounds = 32
)

// chooseSlices sets the length of the turns of rows that have none yet. Where user-space
// programs forward packets, which work in bursts, the figures of some slices tell how long
// a turn must be; one row answers for those of the same network.
func (e *epoch) chooseSlices(ctx context.Context) error {
	known := map[lab.Options]*measuredRow{}
	for _, s := range slices.Clone(e.standing) {
		row := s.row
		if row.slice > 0 {
			continue
		}
		row.slice = e.run.options.leastSlice(row)
		if e.run.options.Slice == 0 && row.class() != result.ClassKernel && row.slice < shapedSlice && !row.spec.workload.Setup.Paced() {
			network := row.spec.path.Lab
			network.Via, network.Datapath, network.NetfilterCall = "", "", false
			if alike := known[network]; alike != nil {
				row.slice, row.every = alike.slice, alike.every
			} else if err := s.pilot(ctx); err != nil {
				if err := e.drop(ctx, s, err); err != nil {
					return err
				}
				continue
			}
			known[network] = row
		}
		row.row.SliceSeconds = row.slice.Seconds()
	}
	return nil
}

// leastSlice returns the least length of a row's turns, or that of the options.
func (o Options) leastSlice(row *measuredRow) time.Duration {
	wire, workload, least := row.spec.path.Lab, row.spec.workload, kernelSlice
	switch {
	case o.Slice > 0:
		return o.Slice
	case wire.WireRate > 0, wire.WireDelay > 0:
		least = max(shapedSlice, delaysPerSlice*wire.WireDelay)
	case row.class() == result.ClassGuests, row.class() == result.ClassTwoCPUs, workload.Name == load.UDPStream, workload.Setup.Paced():
		least = slowSlice
	}
	if rate := workload.Setup.Rate; rate > 0 {
		least = max(least, requestsPerSlice*time.Second/time.Duration(rate))
	}
	return min(least, maxSlice)
}

// pilot finds the length that the turns of a row's connection must have, and how often it
// takes one.
func (s *standing) pilot(ctx context.Context) error {
	batch := slices.Repeat([]load.Slice{s.slice()}, pilotBatch)
	var figures []float64
	started := time.Now()
	for len(figures) < pilotSlices && time.Since(started) < pilotTime {
		taken, err := s.client.Slices(ctx, batch)
		if err != nil {
			return err
		}
		for _, t := range taken {
			figures = append(figures, float64(t.Count)/t.Seconds)
		}
	}
	least := s.row.slice
	s.row.slice = min(stats.SliceLength(figures, least), longestSlice*least)
	started = time.Now()
	if _, err := s.client.Slices(ctx, []load.Slice{s.slice(), s.slice()}); err != nil {
		return err
	}
	turn := time.Since(started) / 2
	for s.row.every = 1; s.row.every < mostRounds && turn > time.Duration(s.row.every)*usualTurn; s.row.every *= 2 {
		continue
	}
	return nil
}
