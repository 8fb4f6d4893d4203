// SPDX-License-Identifier: Apache-2.0

package load

import (
	"fmt"
	"time"

	hdrhistogram "github.com/HdrHistogram/hdrhistogram-go"

	"mustang/internal/load/clock"
)

// Values of a request's one byte. They spare the server a clock.
const (
	rrWarmup   = 'w' // not counted
	rrMeasured = 'm' // counted
	rrEnd      = 'e' // not counted; the report follows the response
)

// Bounds of the latency histogram: 1 ns to 60 s, 3 significant digits.
const (
	histogramMin    = 1
	histogramMax    = int64(60 * time.Second)
	histogramDigits = 3
)

// tcpRR sends one byte and waits for one byte, again and again. The client measures.
// The end of a transaction is the start of the next one, so the latencies add up to the
// window.
type tcpRR struct{}

func (tcpRR) name() string { return TCPRR }

func (tcpRR) code() byte { return 'r' }

func (tcpRR) network() string { return "tcp" }

func (t tcpRR) drive(r *clientRun) (m Measurement, err error) {
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
func (t tcpRR) measure(r *clientRun, s *session) (Measurement, error) {
	if err := s.setNoDelay(true); err != nil {
		return Measurement{}, err
	}
	window, err := clock.OpenWindow(s.spec.Exact)
	if err != nil {
		return Measurement{}, err
	}
	defer window.Close()
	histogram := hdrhistogram.New(histogramMin, histogramMax, histogramDigits)
	if err := t.warmUp(s); err != nil {
		return Measurement{}, err
	}
	if err := window.Begin(); err != nil {
		return Measurement{}, err
	}
	elapsed, err := t.transact(s, histogram)
	if err != nil {
		return Measurement{}, err
	}
	if err := window.End(); err != nil {
		return Measurement{}, err
	}
	if err := t.exchange(s, new([1]byte), rrEnd); err != nil {
		return Measurement{}, err
	}
	report, err := s.readReport()
	if err != nil {
		return Measurement{}, err
	}
	count := uint64(histogram.TotalCount())
	if report.Count != count {
		return Measurement{}, fmt.Errorf("client counts %d transactions, server %d", count, report.Count)
	}
	m, err := r.measurement([]Served{report})
	m.Histogram, m.Machine, m.ClientCPUSeconds = histogram, window.Machine, window.ProcessCPU.Seconds()
	m.BusyNanos = window.BusyNanos
	m.Units, m.Seconds = float64(count), elapsed.Seconds()
	m.Unit, m.CPUUnit = "transactions/s", "transaction"
	m.Rate = float64(count) / m.Seconds
	return m, err
}

// exchange does one transaction, using b as its buffer.
func (tcpRR) exchange(s *session, b *[1]byte, kind byte) error {
	b[0] = kind
	if _, err := s.write(b[:]); err != nil {
		return err
	}
	if _, err := s.read(b[:]); err != nil {
		return err
	}
	if b[0] != kind {
		return fmt.Errorf("request %q got the response %q", kind, b[0])
	}
	return nil
}

// warmUp does transactions for the time of the warm-up, or the spec's Settle.
func (t tcpRR) warmUp(s *session) error {
	b := new([1]byte)
	if s.spec.Limit > 0 {
		for range s.spec.Settle {
			if err := t.exchange(s, b, rrWarmup); err != nil {
				return err
			}
		}
		return nil
	}
	for start := time.Now(); time.Since(start) < s.spec.Warmup; {
		if err := t.exchange(s, b, rrWarmup); err != nil {
			return err
		}
	}
	return nil
}

// transact does the transactions of the window, at least one, and records each one's
// latency. It returns the window's length.
func (t tcpRR) transact(s *session, histogram *hdrhistogram.Histogram) (time.Duration, error) {
	b := new([1]byte)
	start := time.Now()
	var last time.Duration
	for done := uint64(0); ; {
		if err := t.exchange(s, b, rrMeasured); err != nil {
			return 0, err
		}
		now := time.Since(start)
		if err := histogram.RecordValue(int64(now - last)); err != nil {
			return 0, err
		}
		last = now
		done++
		if s.spec.Limit > 0 && done == s.spec.Limit || s.spec.Limit == 0 && now >= s.spec.Duration {
			return now, nil
		}
	}
}

func (tcpRR) serve(s *session) error {
	if err := s.setNoDelay(true); err != nil {
		return err
	}
	report := s.served()
	b := new([1]byte)
	var began time.Duration
	for {
		if _, err := s.read(b[:]); err != nil {
			return fmt.Errorf("after %d transactions in the window: %w", report.Count, err)
		}
		switch b[0] {
		case rrMeasured:
			if report.Count == 0 {
				began = clock.ProcessCPU()
			}
			report.Count++
		case rrEnd:
			report.CPUSeconds = (clock.ProcessCPU() - began).Seconds()
		}
		if _, err := s.write(b[:]); err != nil {
			return err
		}
		if b[0] != rrEnd {
			continue
		}
		s.publish(report)
		if err := s.sendReport(report); err != nil {
			return err
		}
		return s.drain(b[:])
	}
}
