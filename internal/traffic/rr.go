// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"
	"time"

	hdrhistogram "github.com/HdrHistogram/hdrhistogram-go"
)

// What a request's one byte says, so that the server needs no clock.
const (
	rrWarmup   = 'w' // not counted
	rrMeasured = 'm' // counted
	rrEnd      = 'e' // not counted; the report follows the answer
)

// Bounds of the latency histogram: 1 ns to 60 s, 3 significant digits.
const (
	histogramMin    = 1
	histogramMax    = int64(60 * time.Second)
	histogramDigits = 3
)

// tcpRR sends one byte and waits for one byte, again and again. The client
// measures: the end of a transaction is the start of the next one, so a
// transaction's latency holds all that the client did in it.
type tcpRR struct{}

func (tcpRR) name() string    { return TCPRR }
func (tcpRR) code() byte      { return 'r' }
func (tcpRR) network() string { return "tcp" }

func (t tcpRR) drive(f *flows) (m Measurement, err error) {
	err = f.each(func(_ int, s *session) error {
		if err := s.greet(t); err != nil {
			return err
		}
		m, err = t.ask(f, s)
		return err
	})
	return m, err
}

// ask does the run's transactions on its only flow.
func (t tcpRR) ask(f *flows, s *session) (Measurement, error) {
	if err := s.setNoDelay(true); err != nil {
		return Measurement{}, err
	}
	window, err := openWindow(s.spec)
	if err != nil {
		return Measurement{}, err
	}
	defer window.close()
	histogram := hdrhistogram.New(histogramMin, histogramMax, histogramDigits)
	if err := t.warmUp(s); err != nil {
		return Measurement{}, err
	}
	if err := window.begin(); err != nil {
		return Measurement{}, err
	}
	elapsed, err := t.measure(s, histogram)
	if err != nil {
		return Measurement{}, err
	}
	if err := window.end(); err != nil {
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
	m, err := f.measurement([]Served{report})
	m.Histogram, m.Machine, m.ClientCPUSeconds = histogram, window.machine, window.cpu.Seconds()
	m.BusyNanos = window.busy
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
		return fmt.Errorf("request %q got the answer %q", kind, b[0])
	}
	return nil
}

// warmUp does transactions until the warm-up is over, or as many as are to
// settle.
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

// measure does the transactions of the window and records each one's latency.
// It returns the window's length. At least one is done.
func (t tcpRR) measure(s *session, histogram *hdrhistogram.Histogram) (time.Duration, error) {
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
				began = processCPU()
			}
			report.Count++
		case rrEnd:
			report.CPUSeconds = (processCPU() - began).Seconds()
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
