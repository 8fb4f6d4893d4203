// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"mustang/internal/bench/evidence"
	"mustang/internal/bench/stats"
	"mustang/internal/lab"
	"mustang/internal/load"
	"mustang/internal/result"
)

// turns returns the order of a round. The rows of a block take turns in random order, and then in the reverse order
// (ABBA). Steady drift of the machine's speed thus affects all of them alike. Blocks follow each other in random
// order: the rows of a block, which are compared most, lie close together. Seed and round determine the order.
func turns(seed uint64, round int, blocks [][]int) (out []int) {
	for _, i := range order(seed, round, len(blocks)) {
		there := convert(order(seed+1+uint64(i), round, len(blocks[i])), func(j int) int { return blocks[i][j] })
		out = append(out, there...)
		slices.Reverse(there)
		out = append(out, there...)
	}
	return out
}

// epoch is the time in which connections of rows of one workload stand open.
type epoch struct {
	run         *run
	instance    int
	connections []*connection
	recorders   map[*lab.Lab]*evidence.Recorder
	failed      []*measuredRow
	// taken and repeated are counts of rounds. queue has the numbers of the rounds to come, next is the one after them.
	taken, repeated, next int
	queue                 []int
}

// blocks divides the rows of a matrix, which compares each connection's ways to a service with its pod IP, by their
// link. Other suites compare rows across, and are one block. Rows that take no part in the round are in none.
func (e *epoch) blocks(round int) [][]int {
	least := slowEvery // without a quick row, slow ones take part in every round
	for _, s := range e.connections {
		least = min(least, max(s.row.every, 1))
	}
	var taking []int
	for i, s := range e.connections {
		if round%(max(s.row.every, 1)/least) == 0 {
			taking = append(taking, i)
		}
	}
	return groupBy(taking, func(i int) string {
		if row := e.connections[i].row; row.spec.suite.Report.Layout == result.LayoutMatrix {
			return row.row.Link
		}
		return ""
	})
}

func (e *epoch) rounds(ctx context.Context, t *turnTime) error {
	for n := t.next(); n > 0 && len(e.connections) > 0; n = t.next() {
		e.run.options.Progress.Row(e.connections[0].row.spec.name(), t.left())
		started, repeated := time.Now(), e.repeated
		if err := e.batch(ctx, n); err != nil {
			return err
		}
		t.took(n-(e.repeated-repeated), time.Since(started))
	}
	return nil
}

// batch takes rounds with two turns for each connection, and adds their samples to the rows. The numbers of rounds
// decide which rows take part. A disturbed round is repeated with its number: slow rows, which are disturbed most, miss
// none. If a turn fails, the rows whose turns also fail alone fail, and the batch is repeated without them.
func (e *epoch) batch(ctx context.Context, rounds int) error {
	for ; len(e.queue) < rounds; e.next++ {
		e.queue = append(e.queue, e.next)
	}
	for len(e.connections) > 0 {
		var orders [][]int
		for i, number := range e.queue[:rounds] {
			orders = append(orders, turns(e.run.options.Seed, e.run.turned+i, e.blocks(number)))
		}
		before := e.run.quota.Throttled()
		taken, err := e.take(ctx, slices.Concat(orders...))
		throttled := e.run.quota.Throttled() - before
		e.run.disturbed.throttled += throttled
		switch {
		case ctx.Err() != nil:
			return err
		case err != nil:
			if err := e.findFailed(ctx, err); err != nil {
				return err
			}
			continue
		}
		numbers, queue := e.queue[:rounds], e.queue[rounds:]
		e.queue = nil
		for i, order := range orders {
			if e.repeats(order, throttled > 0 || e.spoilt(order, taken[:len(order)])) {
				e.queue = append(e.queue, numbers[i])
			} else {
				e.add(order, taken[:len(order)])
			}
			e.run.turned++ // a repeated round gets another order
			taken = taken[len(order):]
		}
		e.queue = append(e.queue, queue...)
		return nil
	}
	return nil
}

func (e *epoch) repeats(order []int, spoilt bool) bool {
	e.taken++
	e.run.disturbed.rounds++
	if !spoilt {
		return false
	}
	e.run.disturbed.spoilt++
	for i, s := range e.connections {
		if slices.Contains(order, i) {
			s.row.row.SpoiltRounds++
		}
	}
	if e.repeated >= e.taken/mostSpoilt {
		return false
	}
	e.repeated++
	return true
}

// spoilt reports whether a round was disturbed: the hypervisor gave CPU time to others, or TCP retransmitted on a path
// in the kernel. Such a path loses nothing, unless its wire has a rate and drops the excess.
func (e *epoch) spoilt(order []int, taken []load.SliceResult) bool {
	for i, t := range taken {
		row := e.connections[order[i]].row
		lossless := row.class() == result.ClassKernel && row.spec.path.Lab.WireRate == 0
		if t.Machine.StealSeconds > 0 || t.Retransmits > 0 && lossless {
			return true
		}
	}
	return false
}

func (e *epoch) take(ctx context.Context, order []int) (taken []load.SliceResult, err error) {
	for len(order) > 0 {
		client := e.connections[order[0]].client
		var batch []load.Slice
		for len(batch) < min(len(order), load.MaxSlices) && e.connections[order[len(batch)]].client == client {
			batch = append(batch, e.connections[order[len(batch)]].slice())
		}
		results, err := client.Slices(ctx, batch)
		if err != nil {
			return nil, err
		}
		taken, order = append(taken, results...), order[len(batch):]
	}
	return taken, nil
}

// shortLead is the uncounted time before the turns of paths through user space, a tenth of the usual turn. They are
// long: in a tenth of theirs, a sender fills its buffer, which takes such a path as long to empty as the turn itself.
const shortLead = kernelSlice / 10

func (s *connection) slice() load.Slice {
	slice := load.Slice{Conn: s.connection.ID, Duration: s.row.slice}
	if s.row.spec.path.Ends != nil && s.row.spec.workload.Name == load.TCPStream {
		slice.Lead = s.row.slice / clusterLead
	}
	if s.row.class() == result.ClassUserSpace && s.row.slice < shapedSlice && !s.row.spec.workload.Setup.Paced() {
		slice.Lead = shortLead
	}
	return slice
}

func (e *epoch) findFailed(ctx context.Context, cause error) error {
	failed := len(e.failed)
	for _, s := range slices.Clone(e.connections) {
		if _, err := s.client.Slices(ctx, []load.Slice{s.slice()}); err != nil {
			if err := e.fail(ctx, s.row, err); err != nil {
				return err
			}
		}
	}
	if len(e.failed) == failed {
		return fmt.Errorf("a turn failed, and none did when they ran alone: %w", cause)
	}
	return nil
}

// fail marks a row as failed, unless ctx has ended. The end of the epoch resets its agents: other rows may use them.
func (e *epoch) fail(ctx context.Context, row *measuredRow, err error) error {
	if ctx.Err() != nil {
		return err
	}
	e.connections = slices.DeleteFunc(e.connections, func(s *connection) bool { return s.row == row })
	e.failed = append(e.failed, row)
	e.run.exclude(row, err)
	return nil
}

// add adds the sample of a round to each row: the rate over both of its turns.
func (e *epoch) add(order []int, taken []load.SliceResult) {
	round, at := e.run.turned, e.instance
	for i, s := range e.connections {
		first := slices.Index(order, i)
		if first < 0 {
			continue // not in this round
		}
		last := first + 1 + slices.Index(order[first+1:], i)
		position := stats.Position{Lab: at, Process: at, Connection: at, Round: round}
		switch {
		case s.lab == nil:
			position.Lab = 0 // the pods stay
		case keeps(s.row.spec.path.Lab):
			position.Lab, position.Process = 0, 0
		}
		s.row.addTurns(position, round, taken[first], taken[last])
		e.run.head.TurnSeconds += taken[first].Seconds + taken[last].Seconds
	}
}

// warmTime is how long a TCP stream carries load before its turns count. Without it, the first ten turns of a
// connection are up to a quarter faster or slower than later ones, each path in its own way.
const warmTime = 10 * time.Millisecond

// Lengths of turns. In shorter turns, the compared turns lie closer together. There are also more of them, and their
// middle half ignores interrupted ones.
const (
	kernelSlice = time.Millisecond
	// slowSlice is the length where a path carries little in a millisecond, or a program in
	// user space forwards packets, which works in bursts.
	slowSlice = 10 * time.Millisecond
	// shapedSlice is the length if a wire has a rate: its bucket holds a millisecond of it, which a turn's lead empties.
	shapedSlice      = 50 * time.Millisecond
	delaysPerSlice   = 100 // the number of a wire's delays that a turn holds: tens of transactions
	requestsPerSlice = 2   // the number of requests of a fixed rate that a turn holds at least
)

// slowEvery is how often a path through user space takes part: in one of eight rounds. Its turns are ten times as
// long, and other paths need the time more.
const slowEvery = 8

// setTurn sets the length of a row's turns, or the length from the options. It also sets every: the row takes part
// in one of that many rounds. A row with a length keeps both.
func (o Options) setTurn(row *measuredRow) {
	if row.slice > 0 {
		return
	}
	wire, workload, class := row.spec.path.Lab, row.spec.workload, row.class()
	row.slice, row.every = kernelSlice, 1
	switch {
	case o.Slice > 0:
		row.slice = o.Slice
	case wire.WireRate > 0, wire.WireDelay > 0:
		row.slice = max(shapedSlice, delaysPerSlice*wire.WireDelay)
	case class == result.ClassUserSpace, class == result.ClassGuests:
		row.slice, row.every = slowSlice, slowEvery
	case class == result.ClassTwoCPUs, workload.Name == load.UDPStream, workload.Setup.Paced():
		row.slice = slowSlice
	}
	if rate := workload.Setup.Rate; rate > 0 && o.Slice == 0 {
		row.slice = max(row.slice, requestsPerSlice*time.Second/time.Duration(rate))
	}
	row.slice = min(row.slice, maxSlice)
	row.row.SliceSeconds = row.slice.Seconds()
}

// groupRows divides rows into groups whose rounds are interleaved: the rows of a suite. Counted instructions need no
// interleaving: a group is then the rows of a lab, so that no other lab adds work.
func groupRows(rows []*measuredRow, counting bool) [][]*measuredRow {
	type key struct {
		suite string
		lab   lab.Options
	}
	return groupBy(rows, func(row *measuredRow) key {
		if counting {
			return key{row.spec.suite.Name, row.spec.path.Lab}
		}
		return key{suite: row.spec.suite.Name}
	})
}

func groupBy[T any, K comparable](all []T, key func(T) K) [][]T {
	index := map[K]int{}
	var groups [][]T
	for _, item := range all {
		k := key(item)
		i, ok := index[k]
		if !ok {
			i, index[k] = len(groups), len(groups)
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], item)
	}
	return groups
}

func describeGroup(rows []*measuredRow) string {
	byID := groupBy(rows, func(row *measuredRow) string { return row.row.ID })
	ids := convert(byID, func(same []*measuredRow) string { return same[0].row.ID })
	if len(ids) <= 3 {
		return strings.Join(ids, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(ids[:2], ", "), len(ids)-2)
}

// order returns the order in which n rows run in a round. It is a permutation from the seed and the round's number
// (from 0): a run can be repeated, and no row always follows the same other.
func order(seed uint64, round, n int) []int {
	return rand.New(rand.NewPCG(seed, uint64(round))).Perm(n)
}
