// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"errors"
	"time"
)

// rate is a number of transactions and the time that they took.
type rate struct {
	count   uint64
	elapsed time.Duration
}

func (r *rate) add(t tally) {
	r.count += t.count
	r.elapsed += t.elapsed
}

// distance returns the time between the beginnings of two transactions of a requester with a
// pace.
func (q *requester) distance() (time.Duration, error) {
	spec := q.session.spec
	if spec.Pace > 0 {
		return time.Second / time.Duration(spec.Pace), nil
	}
	if q.unpaced.count == 0 {
		return 0, errors.New("a slice without a lead does not show the connection's own rate")
	}
	own := float64(q.unpaced.elapsed) / float64(q.unpaced.count)
	return time.Duration(own / spec.LoadShare), nil
}

// transactPaced does the transactions that are due in a burst, whose time goes on where the
// last burst's ended; in one that is shorter than their distance, one is. One that is late,
// because another took long, is not left out, and its latency counts from when it was due.
// After twice the burst's time those that are left are given up. The client does not sleep
// between transactions: a timer's delay would count as latency.
func (q *requester) transactPaced(b burst) (t tally, err error) {
	distance, err := q.distance()
	if err != nil {
		return t, err
	}
	due := q.due
	if due >= b.length {
		due = 0
	}
	start := time.Now()
	for ; due < b.length; due += distance {
		t.sent++
		if t.elapsed > 2*b.length {
			continue
		}
		for time.Since(start) < due {
		}
		if err := q.exchange(rrMeasured); err != nil {
			return t, err
		}
		t.elapsed = time.Since(start)
		if err := q.histogram.RecordValue(int64(t.elapsed - due)); err != nil {
			return t, err
		}
		t.latency += t.elapsed - due
		t.count++
	}
	for time.Since(start) < b.length {
	}
	t.elapsed, t.received = time.Since(start), t.count
	q.due = max(due-t.elapsed, 0)
	return t, nil
}
