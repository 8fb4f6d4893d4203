// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"errors"
	"fmt"
	"time"

	hdrhistogram "github.com/HdrHistogram/hdrhistogram-go"

	"mustang/internal/load"
	"mustang/internal/load/clock"
)

type requester struct {
	session           *session
	request, response []byte
	histogram         *hdrhistogram.Histogram
	unpaced           load.SliceResult // of the leads
	due               time.Duration    // of the next transaction with a pace, in the next burst
}

func openRequester(c *connection, s *session) (flow, error) {
	c.total.Histogram = newHistogram()
	return &requester{
		session: s, request: make([]byte, s.spec.RequestSize()), response: make([]byte, s.spec.ResponseSize()),
		histogram: c.total.Histogram,
	}, nil
}

func (q *requester) exchange(kind byte) error {
	q.request[0] = kind
	if err := q.session.write(q.request); err != nil {
		return err
	}
	if err := q.session.readFull(q.response); err != nil {
		return err
	}
	if q.response[0] != kind {
		return fmt.Errorf("request %q got the response %q", kind, q.response[0])
	}
	return nil
}

func (q *requester) carry(b burst) (load.SliceResult, error) {
	if b.counted && q.session.spec.Paced() {
		return q.transactPaced(b)
	}
	r, err := transact(b, q.histogram, func() (bool, error) { return true, q.exchange(b.kind()) })
	if !b.counted {
		q.unpaced.Count += r.Count
		q.unpaced.Seconds += r.Seconds
	}
	r.Sent, r.Received = 0, 0 // none is lost
	return r, err
}

func (q *requester) distance() (time.Duration, error) {
	spec := q.session.spec
	if spec.Pace > 0 {
		return time.Second / time.Duration(spec.Pace), nil
	}
	if q.unpaced.Count == 0 {
		return 0, errors.New("a slice without a lead does not show the connection's own rate")
	}
	return time.Duration(q.unpaced.Seconds * float64(time.Second) / float64(q.unpaced.Count) / spec.LoadShare), nil
}

// transactPaced does the transactions that are due in a burst, whose time goes on from the end of the last burst. A
// burst that is shorter than their distance does one. A transaction that is late because another took long is still
// done; its latency counts from its due time. After twice the burst's time the rest is given up. The client does not
// sleep between transactions: a timer's delay would count as latency.
func (q *requester) transactPaced(b burst) (r load.SliceResult, err error) {
	distance, err := q.distance()
	if err != nil {
		return r, err
	}
	due := q.due
	if due >= b.length {
		due = 0
	}
	var elapsed, latency time.Duration
	for ; due < b.length; due += distance {
		r.Sent++
		if elapsed > 2*b.length {
			continue
		}
		for time.Since(b.start) < due {
		}
		if err := q.exchange(kindMeasured); err != nil {
			return r, err
		}
		elapsed = time.Since(b.start)
		if err := q.histogram.RecordValue(int64(elapsed - due)); err != nil {
			return r, err
		}
		latency += elapsed - due
		r.Count++
	}
	for time.Since(b.start) < b.length {
	}
	elapsed = time.Since(b.start)
	r.Seconds, r.LatencySeconds, r.Received = elapsed.Seconds(), latency.Seconds(), r.Count
	q.due = max(due-elapsed, 0)
	return r, nil
}

func (q *requester) idle() error { return q.exchange(kindIdle) }

func (q *requester) end() (load.Served, error) {
	if err := q.exchange(kindEnd); err != nil {
		return load.Served{}, err
	}
	return q.session.readReport()
}

func serveRequests(s *session) error {
	request, response := make([]byte, s.spec.RequestSize()), make([]byte, s.spec.ResponseSize())
	delay := clock.NewSpinner(s.spec.Delay)
	if err := s.welcome(); err != nil {
		return err
	}
	for kind := byte(kindIdle); kind != kindEnd; {
		if kind == kindIdle {
			if err := s.park(0); err != nil {
				return err
			}
		}
		if err := s.readFull(request); err != nil {
			return err
		}
		if kind = request[0]; kind == kindMeasured {
			s.Count++
		}
		delay.Spin()
		response[0] = kind
		if err := s.write(response); err != nil {
			return err
		}
	}
	return nil
}
