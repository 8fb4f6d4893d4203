// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"fmt"
	"time"

	hdrhistogram "github.com/HdrHistogram/hdrhistogram-go"

	"mustang/internal/load"
	"mustang/internal/load/clock"
	"mustang/internal/load/socket"
)

// Values of the first byte of a request and of its response. They spare the server a
// clock.
const (
	rrWarmup   = 'w' // not counted
	rrMeasured = 'm' // counted
	rrRest     = 'p' // not counted; the slice is over
	rrEnd      = 'e' // not counted; the report follows the response
)

// Bounds of the latency histogram: 1 ns to 60 s, 3 significant digits.
const (
	histogramMin    = 1
	histogramMax    = int64(60 * time.Second)
	histogramDigits = 3
)

// tcpRR sends a request and waits for the response, again and again. The client measures.
// The end of a transaction is the start of the next one, so the latencies add up to the
// window.
type tcpRR struct{}

func (tcpRR) name() string { return load.TCPRR }

func (tcpRR) code() byte { return 'r' }

func (tcpRR) network() string { return "tcp" }

func (t tcpRR) drive(r *clientRun) (m load.Measurement, err error) {
	err = r.each(func(_ int, s *session) error {
		if err := s.sendHeader(t); err != nil {
			return err
		}
		m, err = t.measure(r, s)
		return err
	})
	return m, err
}

// measure does the run's transactions on its only flow.
func (t tcpRR) measure(r *clientRun, s *session) (load.Measurement, error) {
	q, err := newRequester(s)
	if err != nil {
		return load.Measurement{}, err
	}
	window, err := clock.OpenWindow(s.spec.Exact)
	if err != nil {
		return load.Measurement{}, err
	}
	defer window.Close()
	if s.spec.Limit > 0 && s.spec.Settle > 0 {
		_, err = q.transact(rrWarmup, 0, s.spec.Settle)
	} else if s.spec.Limit == 0 && s.spec.Warmup > 0 {
		_, err = q.transact(rrWarmup, s.spec.Warmup, 0)
	}
	if err != nil {
		return load.Measurement{}, err
	}
	if err := window.Begin(); err != nil {
		return load.Measurement{}, err
	}
	done, err := q.transact(rrMeasured, s.spec.Duration, s.spec.Limit)
	if err != nil {
		return load.Measurement{}, err
	}
	if err := window.End(); err != nil {
		return load.Measurement{}, err
	}
	report, err := q.end()
	if err != nil {
		return load.Measurement{}, err
	}
	if report.Count != done.count {
		return load.Measurement{}, fmt.Errorf("client counts %d transactions, server %d", done.count, report.Count)
	}
	m, err := r.measurement([]load.Served{report})
	m.Histogram, m.Machine, m.ClientCPUSeconds = q.histogram, window.Machine, window.ProcessCPU.Seconds()
	m.BusyNanos = window.BusyNanos
	m.Seconds = done.elapsed.Seconds()
	m.SetRate()
	return m, err
}

func (tcpRR) stand(c *standingConn, s *session) (flow, error) {
	q, err := newRequester(s)
	if err != nil {
		return nil, err
	}
	c.histogram = q.histogram
	return q, nil
}

// requester is the client's part of a tcpRR connection.
type requester struct {
	session           *session
	request, response []byte
	histogram         *hdrhistogram.Histogram
	unpaced           rate          // of the leads
	due               time.Duration // of the next transaction with a pace, in the next burst
}

func newRequester(s *session) (*requester, error) {
	return &requester{
		session: s, request: make([]byte, s.spec.RequestSize()), response: make([]byte, s.spec.ResponseSize()),
		histogram: hdrhistogram.New(histogramMin, histogramMax, histogramDigits),
	}, socket.SetNoDelay(s.fd, true)
}

// exchange does one transaction.
func (q *requester) exchange(kind byte) error {
	q.request[0] = kind
	if _, err := q.session.Write(q.request); err != nil {
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

// transact does transactions of a kind for a time or, if limit is not 0, that number of
// them; at least one. It records the latencies of measured ones.
func (q *requester) transact(kind byte, length time.Duration, limit uint64) (t tally, err error) {
	start := time.Now()
	for {
		if err := q.exchange(kind); err != nil {
			return t, err
		}
		now := time.Since(start)
		if kind == rrMeasured {
			if err := q.histogram.RecordValue(int64(now - t.elapsed)); err != nil {
				return t, err
			}
		}
		t.elapsed = now
		t.count++
		if limit > 0 && t.count == limit || limit == 0 && now >= length {
			return t, nil
		}
	}
}

func (q *requester) carry(b burst) (tally, error) {
	switch {
	case b.counted && q.session.spec.Paced():
		return q.transactPaced(b)
	case b.counted:
		return q.transact(rrMeasured, b.length, 0)
	}
	t, err := q.transact(rrWarmup, b.length, 0)
	q.unpaced.add(t)
	return t, err
}

func (q *requester) rest() error { return q.exchange(rrRest) }

func (q *requester) end() (load.Served, error) {
	if err := q.exchange(rrEnd); err != nil {
		return load.Served{}, err
	}
	return q.session.readReport()
}

func (tcpRR) serve(s *session) error {
	if err := socket.SetNoDelay(s.fd, true); err != nil {
		return err
	}
	report := s.served()
	request, response := make([]byte, s.spec.RequestSize()), make([]byte, s.spec.ResponseSize())
	var began time.Duration
	delay := clock.NewSpinner(s.spec.Delay)
	resting, counting := s.spec.Standing, false
	for {
		if resting {
			if err := s.park(0); err != nil {
				return err
			}
		}
		if err := s.readFull(request); err != nil {
			return fmt.Errorf("after %d transactions in the window: %w", report.Count, err)
		}
		kind := request[0]
		switch kind {
		case rrMeasured:
			if !counting {
				counting, began = true, clock.ProcessCPU()
			}
			report.Count++
		case rrRest, rrEnd:
			if counting {
				counting = false
				report.CPUSeconds += (clock.ProcessCPU() - began).Seconds()
			}
		}
		resting = kind == rrRest
		delay.Spin()
		response[0] = kind
		if _, err := s.Write(response); err != nil {
			return err
		}
		if kind != rrEnd {
			continue
		}
		s.publish(report)
		if err := s.sendReport(report); err != nil {
			return err
		}
		return s.drain(request)
	}
}
