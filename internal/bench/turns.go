// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"slices"

	"mustang/internal/load"
	"mustang/internal/result"
)

// turns returns the order of a round. The rows of a block take turns in random order, and
// then in the reverse order (ABBA), so that steady drift of the machine's speed affects
// all of them alike. Blocks follow each other in random order, so that the rows of one,
// which are compared most, lie close together. Seed and round determine the order.
func turns(seed uint64, round int, blocks [][]int) []int {
	var out []int
	for _, i := range order(seed, round, len(blocks)) {
		var there []int
		for _, j := range order(seed+1+uint64(i), round, len(blocks[i])) {
			there = append(there, blocks[i][j])
		}
		out = append(out, there...)
		slices.Reverse(there)
		out = append(out, there...)
	}
	return out
}

// blocks divides the rows of a matrix, which compares each connection's ways to a service
// with its pod IP, by their link. Other suites compare rows across, and are one block.
func (e *epoch) blocks() [][]int {
	index := map[string]int{}
	var out [][]int
	for i, s := range e.standing {
		link := ""
		if s.row.spec.suite.Report.Layout == result.LayoutMatrix {
			link = s.row.row.Link
		}
		at, ok := index[link]
		if !ok {
			at, index[link] = len(out), len(out)
			out = append(out, nil)
		}
		out[at] = append(out[at], i)
	}
	return out
}

// round gives each connection two turns and adds a sample to each row. If a turn fails,
// those rows fail whose turns fail alone too, and the round is repeated without them.
func (e *epoch) round(ctx context.Context, instance, round int) error {
	o := e.run.options
	for len(e.standing) > 0 {
		order := turns(o.Seed, e.run.turned, e.blocks())
		taken, err := e.take(ctx, order)
		if err == nil {
			e.run.turned++
			e.add(instance, round, order, taken)
			return nil
		}
		if ctx.Err() != nil {
			return err
		}
		if err := e.findFailed(ctx, err); err != nil {
			return err
		}
	}
	return nil
}

// take runs the turns of a round. Neighbours of one agent run in one call.
func (e *epoch) take(ctx context.Context, order []int) ([]load.SliceResult, error) {
	var taken []load.SliceResult
	for len(order) > 0 {
		client := e.standing[order[0]].client
		n := slices.IndexFunc(order, func(i int) bool { return e.standing[i].client != client })
		if n < 0 {
			n = len(order)
		}
		var batch []load.Slice
		for _, i := range order[:n] {
			batch = append(batch, e.slice(e.standing[i]))
		}
		results, err := client.Slices(ctx, batch)
		if err != nil {
			return nil, err
		}
		taken, order = append(taken, results...), order[n:]
	}
	return taken, nil
}

// slice returns a turn of a connection.
func (e *epoch) slice(s *standing) load.Slice {
	return load.Slice{Conn: s.connection.ID, Duration: e.run.options.Slice}
}

// findFailed fails the rows whose turn fails when it runs alone.
func (e *epoch) findFailed(ctx context.Context, cause error) error {
	var failed []*standing
	for _, s := range e.standing {
		_, err := s.client.Slices(ctx, []load.Slice{e.slice(s)})
		if ctx.Err() != nil {
			return err
		}
		if err != nil {
			failed = append(failed, s)
			if err := e.fail(ctx, s.row, err); err != nil {
				return err
			}
		}
	}
	if len(failed) == 0 {
		return fmt.Errorf("a turn failed, and none did when they ran alone: %w", cause)
	}
	e.standing = slices.DeleteFunc(e.standing, func(s *standing) bool { return slices.Contains(failed, s) })
	return nil
}

// add adds the sample of a round to each row: the rate over both of its turns.
func (e *epoch) add(instance, round int, order []int, taken []load.SliceResult) {
	for i, s := range e.standing {
		first := slices.Index(order, i)
		last := first + 1 + slices.Index(order[first+1:], i)
		position := result.Position{Lab: instance, Process: instance, Connection: instance, Round: round}
		if keeps(s.row.spec.path.Lab) {
			position.Lab, position.Process = 0, 0
		}
		s.row.addTurns(position, e.run.turned, taken[first], taken[last])
		e.run.options.Progress.Sample(s.row.spec.name())
		e.run.options.Progress.Done()
	}
}
